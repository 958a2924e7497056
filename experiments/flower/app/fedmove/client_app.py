"""The client: gives the arrays back, a little changed."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, _context: Context) -> Message:
    """Adds a little to every number, which is far less work than training."""
    arrays = message.content["arrays"]
    changed = {
        name: Array(array.numpy() + np.float32(1e-4)) for name, array in arrays.items()
    }
    content = RecordDict(
        {"arrays": ArrayRecord(changed), "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content=content, reply_to=message)
