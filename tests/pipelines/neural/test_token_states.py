"""The last layer's vectors, against transformers on one text at a time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from soundingline.pipelines.neural.token_states import PackedBert, Padded, token_states  # noqa: E402

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
    "initializer_range": 0.3,
}
# Of equal and of unlike length, in no order, one of a single token.
LENGTHS = (40, 40, 33, 17, 16, 16, 64, 1, 3)


def network(kind):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if kind == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=60,
            dim=32,
            hidden_dim=64,
            n_layers=3,
            n_heads=4,
            max_position_embeddings=80,
            initializer_range=0.3,
        )
        network = transformers.DistilBertModel(config)
    elif kind == "roberta":
        config = transformers.RobertaConfig(pad_token_id=1, **SIZES)
        network = transformers.RobertaModel(config)
    elif kind == "albert":
        network = transformers.AlbertModel(transformers.AlbertConfig(embedding_size=16, **SIZES))
    else:
        network = transformers.BertModel(transformers.BertConfig(**SIZES))
    for name, weight in network.named_parameters():
        if "norm" in name.lower() or name.endswith("bias"):
            torch.nn.init.uniform_(weight, 0.2, 1.2)
    return network.eval()


def texts():
    random = torch.Generator().manual_seed(2)
    return [torch.randint(3, 60, (length,), generator=random).tolist() for length in LENGTHS]


def alone(model):
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in texts()]


@pytest.mark.parametrize(
    ("kind", "computed"),
    [
        ("bert", PackedBert),
        ("distilbert", PackedBert),
        ("roberta", PackedBert),
        ("albert", Padded),
    ],
)
def test_each_text_has_the_vectors_that_it_has_alone(kind, computed):
    model = network(kind)
    states = token_states(model, 0, CPU)
    assert isinstance(states, computed)
    for rows, expected in zip(states(texts()), alone(model), strict=True):
        torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
def test_first_states_are_those_of_the_first_tokens_also_of_pairs(kind):
    model = network(kind)
    states = token_states(model, 0, CPU)
    assert isinstance(states, PackedBert)
    expected = torch.stack([rows[0] for rows in alone(model)])
    torch.testing.assert_close(states.first_states(texts()), expected, atol=2e-5, rtol=1e-4)
    if kind == "bert":
        kinds = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in texts()]
        with torch.no_grad():
            of_pairs = [
                model(
                    input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])
                ).last_hidden_state[0, 0]
                for ids, types in zip(texts(), kinds, strict=True)
            ]
        assert (torch.stack(of_pairs) - expected).abs().max() > 0.01
        torch.testing.assert_close(
            states.first_states(texts(), kinds), torch.stack(of_pairs), atol=2e-5, rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
def test_bfloat16_stays_near_float32(kind):
    exact = torch.cat(alone(network(kind)))
    ours = torch.cat(token_states(network(kind).bfloat16(), 0, CPU)(texts()))
    assert torch.nn.functional.cosine_similarity(ours, exact).min() > 0.999
