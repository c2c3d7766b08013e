"""The tensors, options and sources that several operators share, by name."""

from __future__ import annotations

from dataclasses import replace

from attention_core.specification import Option, Tensor

ABNAR = "Abnar and Zuidema 2020, section 3, arXiv:2005.00928"
AINSLIE = "Ainslie et al. 2023, section 2.2, arXiv:2305.13245"
BA = "Ba et al. 2016, section 3, arXiv:1607.06450"
BAHDANAU = "Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473"
CHILD = "Child et al. 2019, section 4.2, arXiv:1904.10509"
CHO = "Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN"
CHO_CONTEXT = "Cho et al. 2014, section 2.2, arXiv:1406.1078; the last output in place of its projection"
DAI = "Dai et al. 2019, section 3 and appendix B, arXiv:1901.02860"
DOSOVITSKIY = "Dosovitskiy et al. 2021, section 3.1, arXiv:2010.11929"
GRAVES = "Graves et al. 2014, section 3.3.1, arXiv:1410.5401"
HOCHREITER = "Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000"
KATHAROPOULOS = "Katharopoulos et al. 2020"
LEE = "Lee et al. 2019, section 3.1, arXiv:1810.00825, without its residual connections and feed-forward network"
LIU = "Liu et al. 2018, section 4.2.4, arXiv:1801.10198"
LIU_COMPRESSED = "Liu et al. 2018, section 4.2.3, arXiv:1801.10198"
LONGFORMER = "Beltagy et al. 2020, section 3.1, arXiv:2004.05150"
LUONG = "Luong et al. 2015, section 3.1, arXiv:1508.04025"
LUONG_LOCAL = "Luong et al. 2015, section 3.2, arXiv:1508.04025"
LUONG_FEEDING = "Luong et al. 2015, section 3.3, arXiv:1508.04025"
GEMMA = "Gemma Team 2024, section 2, arXiv:2408.00118"
MICHEL = "Michel et al. 2019, section 4.1, arXiv:1905.10650"
NADARAYA = "Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372"
SHAZEER = "Shazeer 2020, section 2, arXiv:2002.05202"
PRESS_AND_WOLF = "Press and Wolf 2017, section 2, arXiv:1608.05859"
PRESS = "Press et al. 2022, section 3, arXiv:2108.12409"
RAFFEL = "Raffel et al. 2020, section 2.1, arXiv:1910.10683"
SCHUSTER = "Schuster and Paliwal 1997, doi:10.1109/78.650093"
SU = "Su et al. 2021, section 3.2, arXiv:2104.09864"
VASWANI = "Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762"
VASWANI_HEADS = "Vaswani et al. 2017, section 3.2.2, arXiv:1706.03762"
VASWANI_FEED_FORWARD = "Vaswani et al. 2017, section 3.3, arXiv:1706.03762"
VASWANI_LAYERS = "Vaswani et al. 2017, section 3.1, arXiv:1706.03762"
VASWANI_POSITIONS = "Vaswani et al. 2017, section 3.5, arXiv:1706.03762"
WANG = "Wang et al. 2020, section 4, arXiv:2006.04768"
WU = "Wu et al. 2016, section 7, arXiv:1609.08144, without coverage; beams as in Sutskever et al. 2014"
XIONG = "Xiong et al. 2020, section 3, arXiv:2002.04745"
XU = "Xu et al. 2015, section 4.1, arXiv:1502.03044"
ZHANG = "Zhang and Sennrich 2019, section 3, arXiv:1910.07467"

# ------------------------------------------------------------------------------------------------ tensors

QUERIES = Tensor("queries", ("batch", "heads?", "queries", "features"), "query vectors")
KEYS = Tensor("keys", ("batch", "heads?", "keys", "features"), "key vectors")
VALUES = Tensor("values", ("batch", "heads?", "keys", "value_features"), "value vectors, one for each key")
SCORES = Tensor("scores", ("batch", "heads?", "queries", "keys"), "logits (natural logarithm)")
WEIGHTS = Tensor("weights", ("batch", "heads?", "queries", "keys"), "probabilities over the keys")
CONTEXT = Tensor("context", ("batch", "heads?", "queries", "value_features"), "weighted averages of the values")
NEED_WEIGHTS = Option(
    "need_weights",
    "bool",
    "whether to return the weights; if False, they are None and need not be stored",
    "True",
    keyword_only=True,
)
VALID_LENS = Tensor(
    "valid_lens",
    ("batch", "queries?"),
    "key j is open where j < valid_len",
    kind="integer",
    optional=True,
)
MASK = Tensor(
    "mask",
    ("batch", "heads?", "queries", "keys"),
    "True where a query may attend",
    kind="boolean",
    optional=True,
    broadcast=True,
)
LENS_FOR_ALL = replace(VALID_LENS, axes=("batch",))
MASK_FOR_ALL = replace(
    MASK,
    axes=("batch", "heads?", "one", "keys"),
    meaning="True where a key is open, to all queries",
)
BIAS = Tensor(
    "bias",
    ("batch?", "heads?", "queries", "keys"),
    "added to the scores; -inf hides a key",
    optional=True,
    broadcast=True,
)
ALL_HEADS = "A mask has as many axes as the scores; lengths apply to all heads."
OFFSET = Tensor("offset", ("batch?",), "position of the first query; 0 if None", "integer", True)
POSITION = Tensor(
    "position",
    ("batch?",),
    "number of the key that the first step replaces; behind the last key if None",
    "integer",
    True,
)
DROPOUT_MASK = Tensor(
    "dropout_mask",
    ("batch", "heads?", "queries", "keys"),
    "factor of each weight",
    optional=True,
)

# ------------------------------------------------------------------------------------------------ options

NUM_KEYS = Option("num_keys", "int", "number of keys", domain="count")
SCALE = Option("scale", "float", "factor of the scores; 1/√features if None", "None", "number", keyword_only=True)
SOFTCAP = Option(
    "softcap",
    "float",
    "bound of the scores; none if None",
    "None",
    "positive",
    keyword_only=True,
)
NUM_QUERIES = Option("num_queries", "int", "number of queries", domain="count")
DROPOUT = Option("dropout", "float", "dropout rate of the weights in training", "0.0", "rate", keyword_only=True)
TIME_MAJOR = Option(
    "time_major",
    "bool",
    "whether arrays are (steps, batch, features), without heads",
    "False",
    keyword_only=True,
)
