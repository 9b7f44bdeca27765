"""A deletion request, from a list of records to an unlearned model and its certificate."""
