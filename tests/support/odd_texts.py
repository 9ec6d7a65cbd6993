"""Texts of others that broke something: lone surrogates, and JSON that is nested too deeply."""

# What UTF-8 cannot represent, and what takes its place.
LONE = {
    "the first half of a pair": ("mill \ud83d", "mill \ufffd"),
    "the second half": ("\udc00 mill", "\ufffd mill"),
    "halves in the wrong order": ("\ude00\ud83d", "\ufffd\ufffd"),
    "a byte that is not UTF-8": ("m\udcfchle", "m\ufffdhle"),
    "two halves that are a pair": ("\ud83d\ude00", "😀"),
}
DEEP = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "lists that Python reads": "[" * 300 + "]" * 300,
    "objects that Python reads": '{"a":' * 300 + "1" + "}" * 300,
}
