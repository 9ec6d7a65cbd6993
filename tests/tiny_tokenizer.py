"""A `tokenizer.json` that a test makes: byte-level pairs, trained on a few words."""

from __future__ import annotations


def write_tokenizer(path):
    """Byte-level BPE with a truncation and a padding of its own, which counting must ignore."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the king of the harbour", "king number harbour"] * 20, trainer)
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=40)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path
