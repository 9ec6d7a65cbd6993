"""The vocabulary of the filler: common English words at its head, invented ones in its long tail.

A word is a number: the lower, the commoner. Invented words are stem and ending, both
English-looking and scattered, so that neighbours in rank do not look alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from toolkit.benchmarks.fictional.lexicon import LEXICONS


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


NOUNS = listed("""
year day man woman child world house place work week case point company number group problem fact
hand part water room area story month study book word business issue head service friend father
power hour game line end member law car city community name team minute idea body information
parent face level office door person art war history party result change morning reason research
girl guy moment air teacher force education boy age policy process music market sense nation plan
college interest death course experience effect use class control field development role effort
rate heart drug show leader light voice police mind price report decision son view relationship
town road difference value building action season society tax director record position player
table letter ground event official model century summer winter spring autumn paper press bank
stone bridge harbour coast valley hill forest meadow orchard garden wall roof window tower gate
lane square cellar kitchen workshop mill barn stable cottage inn church chapel bell clock map
ledger archive register diary chronicle pamphlet newspaper editor printer merchant farmer sailor
soldier clerk lawyer doctor engineer builder carpenter mason painter singer dancer actor traveller
visitor guest stranger neighbour cousin uncle aunt widow orphan pupil scholar rumour quarrel
bargain promise debt loan rent wage fee toll ticket cargo wagon cart horse mule ox dog flood storm
frost drought fire harvest famine fever plague rain snow fog wind tide shore island marsh cliff
cave pond lake stream canal ferry dock quay ship boat mast sail anchor net bread cheese wine beer
apple pear plum barley wheat flour salt sugar butter egg meat fish soup pie feast dinner supper
breakfast wool silk linen cloth coat hat boot glove button needle thread ribbon lamp candle mirror
chair bench bed blanket pillow carpet curtain shelf drawer key lock hammer nail saw rope ladder
wheel axle engine boiler pump pipe valve wire signal station railway tunnel platform track
carriage committee council assembly parliament election vote treaty border tribute rebellion siege
battle truce prize medal ceremony procession anthem flag banner costume mask drum trumpet choir
concert theatre comedy tragedy poem ballad proverb legend myth riddle joke sermon prayer hymn
lesson lecture seminar theory method sample measure instrument experiment proof error diagram
figure chapter footnote preface index edition catalogue collection museum gallery exhibition
statue portrait sketch fresco mosaic arch column dome vault staircase corridor balcony courtyard
fountain avenue park cemetery
""")

ADJECTIVES = listed("""
good new first long great little old right big high different small large early young important
public bad local hard major economic strong possible free military true federal international full
special easy clear recent certain personal open red difficult available short single medical
current wrong private past foreign fine common poor natural significant similar hot dead central
happy serious simple left physical general environmental financial blue democratic dark various
entire close legal religious cold final main green nice huge popular traditional cultural narrow
broad quiet noisy bright gloomy modest famous obscure ancient modern rural urban coastal northern
southern eastern western wooden iron golden silver heavy gentle steep shallow deep rough smooth
damp dry dusty muddy frozen fertile barren wealthy humble proud stubborn clever patient careful
careless honest curious nervous cheerful bitter sweet sour fresh stale plain elegant clumsy curved
crooked hollow solid fragile sturdy temporary permanent annual weekly daily reluctant eager silent
formal informal official unofficial rival loyal hostile friendly neutral precious cheap costly
rare frequent occasional sudden gradual distant nearby remote lively
""")

VERBS = listed("""
offer consider raise require report pull explain carry develop receive support remember join
follow form cover watch mention record repair restore visit inspect measure compare describe
sketch paint collect gather count sort order deliver gain earn borrow protect defend attack invade
occupy abandon destroy damage flood burn extend shorten widen deepen strengthen weaken alter adapt
adjust reform reject accept approve question doubt dispute confirm correct revise reprint
translate quote print sign seal post answer address reward punish pardon banish recall honour
praise mock insult fear envy admire neglect ignore welcome greet train instruct examine test weigh
taste cook roast boil plant water harvest plough hunt load unload transport anchor sail row climb
cross enter circle guard
""")

STEM_ONSETS = listed("""
b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sc sh sk sl sm sn sp st str t
th tr tw v w wh y
""")
STEM_VOWELS = listed("a e i o u ai ea ee oa oo ou")
STEM_CODAS = listed("""
b bb ck d dd dg ft g gg ld lk lm ln lp lt m mb mm mp n nd ng nk nn nt p pp r rb rd rf rk rl rm rn
rp rt s sk sp ss st t th tt v x z
""")

NOUN_ENDINGS = listed("""
er el ow ock ing ard age in et le ery ance ator ism ist ity ment ness ship hood dom ure ade ine
oid um us ette let kin ling ster wick worth ham stead ridge combe ley
""")
ADJECTIVE_ENDINGS = listed("y al ic ous ish ive ant ent able ary ory esque some ular like iform")
VERB_ENDINGS = listed("er en le ish ow ol ay it ag")

SCATTER = 14_369  # prime to the number of stems, and far from its divisors' multiples


class Vocabulary(NamedTuple):
    """All words in one list: each category's block starts where `starts` says."""

    words: list[str]
    starts: tuple[int, int, int]
    sizes: tuple[int, int, int]


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """Nouns, adjectives, verbs (in that order), each from common to rare. Built once a process."""
    nouns = _unique(NOUNS, _told_words()) + _invented(NOUN_ENDINGS, 1 << 19)
    adjectives = _unique(ADJECTIVES) + _invented(ADJECTIVE_ENDINGS, 1 << 17)
    verbs = _unique(VERBS) + _invented(VERB_ENDINGS, 1 << 15)
    first, second = len(nouns), len(nouns) + len(adjectives)
    sizes = (len(nouns), len(adjectives), len(verbs))
    return Vocabulary(
        nouns + adjectives + [_past(verb) for verb in verbs], (0, first, second), sizes
    )


def _unique(*groups: list[str]) -> list[str]:
    return list(dict.fromkeys(word for group in groups for word in group))


def _told_words() -> list[str]:
    """Words of the facts' values, then of their paraphrases: pages use them for other things too,
    so that none of them points to one page by itself."""
    names = sorted(LEXICONS)
    values = [value for name in names for value in LEXICONS[name]]
    others = [other for name in names for other in LEXICONS[name].values()]
    return [word for text in values + others for word in text.split() if len(word) > 3]


def _invented(endings: list[str], most: int) -> list[str]:
    """Up to `most` invented words, in a scattered order. In each turn every stem gets one ending,
    and another one in the next."""
    stems = [a + b + c for a in STEM_ONSETS for b in STEM_VOWELS for c in STEM_CODAS]
    size, kinds = len(stems), len(endings)
    words: list[str] = []
    for turn in range(min(kinds, most // size + 1)):
        offset = turn * 4001
        order = [(place * SCATTER + offset) % size for place in range(size)]
        words += [stems[place] + endings[(place + turn) % kinds] for place in order]
    return words[:most]


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"
