"""Model families as data: what a `config.json` leaves unsaid, and what each family cannot do."""
