"""How close an unlearned model is to a retrained one, and what an attacker could tell."""
