"""Methods that change the weights in one step, without training."""
