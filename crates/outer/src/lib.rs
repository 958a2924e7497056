//! Pure outer loop: tensor layout, pseudo-gradient codecs, streaming merge, outer optimiser.
