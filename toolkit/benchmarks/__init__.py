"""Questions, judgements, answers and corpora. Searching and scoring belong to other rooms."""
