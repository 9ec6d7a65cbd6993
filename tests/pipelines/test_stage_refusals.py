"""Settings of stages and of what they are made of that are refused in one line."""

from functools import partial
from math import inf, nan

import pytest
from support.assertions import refused

from soundingline.pipelines import LinkExpansion, OracleRetriever
from soundingline.pipelines.compose import MaxP, compose
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.enrich.df_filter import DfFilter
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.enrich.feedback import FeedbackPhrases
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases, ModelText, WeightedPhrases
from soundingline.pipelines.enrich.phrases import PhraseFile
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.index_folder import Shard
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.q2q import HyDE
from soundingline.pipelines.retrieve import BM25, RM3, QueryLikelihood
from soundingline.pipelines.stage import Collection

LINKS = object()  # nothing is followed
LACKING = r"engine=pisa does not.*valid: bm25.*engine=lexical"
COUNT = "valid: a whole number, 1 or more"
FUSED = BM25(), QueryLikelihood()
MODELS = {
    BM25: {"k1": (-0.1, nan, inf, "much"), "b": (1.01, -0.01), "depth": (0, 2.5)},
    QueryLikelihood: {"mu": (0, -5, nan, inf, "much"), "depth": (0, 2.5)},
    RM3: {"original_weight": (-0.1, 1.1, nan), "fb_docs": (0, 2.5), "fb_terms": (0, "many")}
    | {"k1": (-0.1, nan, inf, "much"), "b": (1.01, -0.01), "depth": (0, 2.5)},
}
REFUSED = [
    *(
        (partial(model, **{name: value}), f"{name}.* valid: ")
        for model, wrong in MODELS.items()
        for name, values in wrong.items()
        for value in values
    ),
    (lambda: BM25(operators="quotes"), "operators is 'quotes'"),
    (lambda: BM25(operators="phrases").validate(PisaEngine()), "BM25 needs operators"),
    *((partial(model().validate, PisaEngine()), LACKING) for model in (RM3, QueryLikelihood)),
    (
        lambda: compose(BM25(operators="phrases"), enrichment=Enrichment(query=FeedbackPhrases())),
        "weighted queries",
    ),
    *((partial(MaxP, depth), f"depth of MaxP=.* {COUNT}") for depth in (0, -1, True, 1.5, "10")),
    (lambda: Interpolation(*FUSED, weights=[0, 1.5]), r"weight 2=1\.5"),
    (lambda: Interpolation(*FUSED, weights=[0, 1, 0]), "3 weights for 2 retr"),
    (lambda: ReciprocalRankFusion(BM25()), "1 retrievers to fuse"),
    (lambda: Interpolation(*FUSED, normalise="z"), "null, minmax"),
    (lambda: ReciprocalRankFusion(*FUSED, k=-1), "k=-1"),
    (lambda: Interpolation(*FUSED, depth=0), "depth=0"),
    (lambda: OracleRetriever().bind(Collection("c")), "no judgements"),
    (lambda: OracleRetriever(depth=0), "depth"),
    (lambda: LinkExpansion().bind(Collection("c")), "no links between its documents"),
    *((partial(LinkExpansion, LINKS, damping=damping), "damping") for damping in (0, 1.5)),
    *((partial(LinkExpansion, LINKS, **{name: 0}), name) for name in ("head", "depth")),
    (lambda: LinkExpansion(LINKS, direction="up"), "direction"),
    (lambda: HyDE(apply_to="all"), "apply_to is 'all'"),
    (lambda: HyDE(task="poem"), "task is 'poem'"),
    (lambda: Enrichment(), "neither side"),
    (lambda: Enrichment(query=FeedbackPhrases(), weight=-1), "weight is -1"),
    (lambda: Enrichment(query=FeedbackPhrases(), form="mine"), "form is 'mine'"),
    (lambda: Enrichment(query=WeightedPhrases(exclusions="all")), "exclusions is 'all'"),
    (lambda: Enrichment(query=WeightedPhrases(), form="published"), "these have weights"),
    (lambda: Enrichment(query=WeightedPhrases()).before(QueryLikelihood()), "apply to BM25"),
    (lambda: Enrichment(query=ModelText(), apply_to="both"), "apply_to is 'both'"),
    (lambda: ModelPhrases(task="weather"), "task is 'weather'"),
    *((partial(ModelPhrases, max_characters=n), f"max_characters={n}") for n in (0, 2.5)),
    (lambda: ModelText().for_documents([], None), "for queries, and not for documents"),
    (lambda: ModelText(method="hydra"), "method is 'hydra'"),
    (lambda: ModelText(method="chain_of_thought", task="maze"), "task is 'maze'"),
    (lambda: FeedbackPhrases(phrases=2.5), "phrases=2.5"),
    (lambda: FeedbackPhrases(fb_docs=0), "fb_docs=0"),
    *((partial(PhraseFile, path="x", phrases=phrases), COUNT) for phrases in (0, True)),
    (lambda: PhraseFile(path="x", words=-1), COUNT),
    *((partial(DfFilter, tau=tau), f"tau is {tau}") for tau in (0.0, 1.5, nan)),
    (lambda: DfFilter(rule="mine"), "rule is 'mine'"),
    *((partial(make_analyzer, name), "valid: .*2") for name in ("englsh", "english:1", "english:")),
    *((partial(make_analyzer, name), "valid: .*2") for name in ("english:5", "english:2:", "x:2")),
    *((partial(Shard, *given), "valid: a whole number") for given in ((4, 4), (-1, 4), (0, 0))),
    (lambda: Shard(True, 4), "valid: a whole number"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_settings_without_meaning_are_refused(make, words):
    refused(words, make)
