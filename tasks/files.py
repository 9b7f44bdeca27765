"""The names of result files in the store."""

WEIGHTS = "weights.safetensors"
RECORD = "record.json"
ENTRY = "entry.json"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "superclass", "class_names")
MOMENTS = ("reference", "counts", "sums", "squares", "outer")
