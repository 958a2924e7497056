"""A Flower app that moves and averages a model's arrays and trains nothing."""
