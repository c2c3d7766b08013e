"""What a porter has to know of each row of the specification: its other names, and the porting pitfalls.

Nothing here is read by an implementation: it is the part of docs/operators.md that the formulas do not say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Porting:
    """The other names of a row, and what differs elsewhere, a sentence or two each."""

    also: tuple[str, ...]
    pitfalls: tuple[str, ...] = ()


RULE = "Here a rule gives one mask for all sequences, (1, queries, keys); lengths come in by attention_mask."

PORTING: dict[str, Porting] = {
    "attention_mask": Porting(
        ("padding mask", "sequence mask", "key padding mask"),
        (
            "True means 'may attend' here, in Keras, Flax, ONNX and scaled_dot_product_attention of PyTorch; in "
            "PyTorch's "
            "MultiheadAttention True means 'hidden'; Hugging Face takes 1 and 0, and adds a large negative number "
            "inside.",
            "A length is a whole number of any integer type; a float length is refused.",
        ),
    ),
    "causal_mask": Porting(
        ("look-ahead mask", "subsequent mask", "autoregressive mask", "tril"),
        (
            RULE,
            "With fewer queries than keys, some align the last query with the last key and some the first with the "
            "first: offset says it. PyTorch's is_causal aligns the first.",
        ),
    ),
    "window_mask": Porting(
        ("sliding window", "band", "local mask"), (RULE, "A window of left=w hides nothing at w - 1.")
    ),
    "block_mask": Porting(("chunked attention", "block-local attention"), (RULE,)),
    "stride_mask": Porting(
        ("strided attention", "dilated attention"),
        (RULE, "The strides of the Sparse Transformer also look back alone: add causal_mask by mask_and."),
    ),
    "global_mask": Porting(("global attention of Longformer", "global tokens"), ()),
    "mask_and": Porting(("intersection of masks",), ()),
    "mask_or": Porting(("union of masks",), ()),
    "from_key_padding_mask": Porting(
        ("key_padding_mask of torch.nn.MultiheadAttention", "src_key_padding_mask", "inverted padding mask"),
        (
            "In PyTorch's MultiheadAttention and Transformer layers True means 'hidden', in its "
            "scaled_dot_product_attention 'may attend'. A mask that was not turned hides the sentence and shows the "
            "padding; where no sequence is padded, every query is closed.",
            "The attention_mask of Hugging Face, (batch, keys) with 1 for an open key, is none: it is "
            "(attention_mask != 0)[:, None].",
            "PyTorch also takes a floating key_padding_mask, which it adds: from_additive_mask(key_padding_mask[:, "
            "None]).",
        ),
    ),
    "to_key_padding_mask": Porting(
        ("~mask for torch.nn.MultiheadAttention",),
        (
            "A boolean attn_mask of PyTorch's MultiheadAttention means 'hidden', too: ~mask there, mask itself for "
            "scaled_dot_product_attention.",
        ),
    ),
    "from_additive_mask": Porting(
        ("float attn_mask", "extended attention mask", "attention bias", "bias of -1e9"),
        (
            "What else the array holds is lost: a bias of ALiBi, or of relative positions, has to be added to the "
            "scores before masked_softmax.",
            "A mask of 1 and 0 is no additive mask, and all of it would be open: compare it with 0 instead.",
            "A mask of two axes, (queries, keys), is given as additive_mask[None].",
            "Fills in use are -1e4 (float16), -1e6, -1e9, the least finite number, and -inf; an open key may have a "
            "bias down to the threshold.",
        ),
    ),
    "to_additive_mask": Porting(
        ("masked_fill(~mask, -inf)", "(1 - mask) * -1e9", "extended attention mask"),
        (
            "Under a plain softmax -inf gives NaN in a query that may attend to nothing; the least finite number gives "
            "uniform weights there, over the padding, too. masked_softmax takes the boolean mask and gives 0.",
            "The last digit of float16's least finite number is worth 32: a score of -16 added to it gives -inf, one "
            "of 17 lifts it. Two such masks that are added give -inf in any type: combine masks by mask_and first.",
            "float32's least number is -inf in float16: make the mask in the dtype of the scores.",
        ),
    ),
    "masked_softmax": Porting(
        ("softmax with a mask", "sequence softmax"),
        (
            "A query that may attend to nothing gets weights 0 here. PyTorch gives NaN in places and 0 in others, "
            "Keras "
            "uniform weights, a fill of -1e6 or -1e9 uniform weights, too.",
            "A finite fill wins over real scores below it, and overflows in float16.",
        ),
    ),
    "dot_score": Porting(
        ("Luong dot", "unscaled dot product"),
        (
            "Keras' Attention and DotProductAttention of many courses are unscaled unless told; scaled_dot_score is "
            "not.",
        ),
    ),
    "scaled_dot_score": Porting(
        ("scaled dot-product", "Transformer attention"),
        ("The scale is 1/√features of a key, per head: the square root of the size of a head, not of the model.",),
    ),
    "additive_score": Porting(
        ("Bahdanau", "mlp", "perc", "concat (of some)"),
        (
            "A sum of query and key without the tanh is no score: v·(q + k) = v·q + v·k, the first term is the same "
            "for "
            "all keys, and the softmax takes it away: the query has no say.",
            "Keras' AdditiveAttention has no projections: it is this function, with scale for w_v.",
            "A bias of W_q and one of W_k do the same thing twice, one behind w_v nothing: there is none here.",
        ),
    ),
    "cosine_score": Porting(
        ("content addressing of Neural Turing Machines", "normalised dot product"),
        (
            "An epsilon in the norm moves every score a little, and makes gradients of zero vectors large; here they "
            "are 0.",
        ),
    ),
    "location_score": Porting(
        ("location-based attention", "attention of the older PyTorch translation tutorial"),
        ("The tutorial scores [embedded token; state] rather than the state, and has a bias.",),
    ),
    "gaussian_score": Porting(("RBF kernel", "Gaussian kernel", "kernel of Nadaraya-Watson regression"), ()),
    "attention_pooling": Porting(
        ("attention readout", "glimpse", "context vector"),
        ("Dropout acts on the weights, and the weights returned are those before it; Keras returns those after it.",),
    ),
    "DotProductAttention": Porting(
        ("scaled dot-product attention", "keras.layers.Attention(use_scale=...)", "d2l DotProductAttention"),
        ("With scale=1 it is Luong's dot.",),
    ),
    "AdditiveAttention": Porting(
        ("Bahdanau attention", "MLP attention", "tfa BahdanauAttention", "OpenNMT 'mlp'"),
        (
            "Bahdanau's decoder takes the previous state as its query, Luong's the current one: the score is not what "
            "tells them apart. TensorFlow Addons' AttentionWrapper takes the current one for both.",
            "OpenNMT's 'mlp' has a bias in the projection of the query.",
        ),
    ),
    "GeneralAttention": Porting(
        ("bilinear", "multiplicative", "Luong general", "tfa LuongAttention", "fairseq AttentionLayer"),
        (
            "W projects the keys here, once for all queries; others project the query by Wᵀ, which is the same "
            "function.",
        ),
    ),
    "ConcatAttention": Porting(
        ("Luong concat",),
        (
            "The paper concatenates [query; key]; many ports write [key; query]: swap the halves of W.",
            "It is AdditiveAttention with W_q and W_k side by side. Keras' score_mode='concat' has no projections and "
            "adds instead of concatenating.",
        ),
    ),
    "CosineAttention": Porting(("content-based attention", "similarity attention"), ("β of the paper is scale.",)),
    "LocationAttention": Porting(
        ("location-based attention",), ("More keys than positions are an error, not a truncation.",)
    ),
    "KernelAttention": Porting(
        ("Gaussian attention", "RBF attention"),
        ("w is the inverse of the width; it stands inside the square.",),
    ),
    "LocalAttention": Porting(
        ("local-m (monotonic)", "local-p (predictive)", "Luong local attention"),
        (
            "'Global' and 'local' say how many keys are seen; neither Bahdanau's attention nor Luong's is local by "
            "itself.",
            "S is the valid length of the sequence, not the padded one; the Gaussian has σ = window/2, and what it "
            "leaves is not normalised again, so that the weights add up to less than 1.",
            "Positions count from 0.",
        ),
    ),
    "HardAttention": Porting(
        ("stochastic attention", "argmax attention", "Gumbel-max sampling"),
        (
            "No gradient reaches the scores: train them by a score-function estimator, as the paper does. A "
            "straight-through Gumbel-softmax is another thing.",
        ),
    ),
    "NadarayaWatson": Porting(
        ("kernel regression", "kernel smoother", "attention pooling of d2l"),
        ("With learned=True, w begins at 1/width; a model trained on its own keys has to hide each query's own key.",),
    ),
    "MultiHeadAttention": Porting(
        ("torch.nn.MultiheadAttention", "keras.layers.MultiHeadAttention", "flax.nnx.MultiHeadAttention"),
        (
            "Head h has rows h·d to (h + 1)·d of W_q, W_k and W_v, and the same columns of W_o. PyTorch stacks the "
            "three "
            "in in_proj_weight; Keras and Flax hold (features, heads, head size).",
            "PyTorch returns the mean of the heads' weights, as here, Keras those of every head; per_head=True asks "
            "for "
            "them.",
            "Biases are there unless told, as in PyTorch and Keras; the paper and d2l have none.",
            "The bias of the keys has no influence under dot, scaled_dot and general: its gradient is 0 but for "
            "rounding.",
            "head_mask multiplies what a head gives, not its weights.",
        ),
    ),
    "ablation_importance": Porting(("head ablation", "leave-one-head-out"), ()),
    "taylor_importance": Porting(
        ("gradient-based head importance", "sensitivity of a head mask"),
        ("The mean is of absolute values per example; the absolute value of the mean lets examples cancel.",),
    ),
    "SinusoidalPositions": Porting(
        ("sinusoidal positional encoding", "timing signal"),
        (
            "The paper and d2l let sines and cosines take turns; tensor2tensor and fairseq put all sines first. "
            "position_permutation turns one into the other.",
            "tensor2tensor's rates end at 1/10000 exactly: they go by features/2 - 1, the paper's by features/2. "
            "fairseq counts from padding_idx + 1.",
            "float32 angles are wrong in the fourth digit at position 10,000; here the table is made in float64, and "
            "rounded once.",
        ),
    ),
    "LearnedPositions": Porting(
        ("position embedding", "absolute positions of BERT and GPT-2"),
        ("fairseq and BART count from 2 (padding_idx + 1): give that as offset.",),
    ),
    "position_permutation": Porting(("interleave", "de-interleave"), ()),
    "GRU": Porting(
        ("torch.nn.GRU", "keras.layers.GRU(reset_after=True)", "gluon.rnn.GRU", "flax GRUCell"),
        (
            "The reset gate acts behind the recurrent product and its bias, as in cuDNN; in the first paper, and in "
            "Keras with reset_after=False, before it. No weights can be carried over between the two.",
            "Gates stand in the order r, z, n; Keras has z, r, h. z keeps the old state.",
            "PyTorch and MXNet have a second bias, which is redundant but for the one of n.",
        ),
    ),
    "LSTM": Porting(
        ("torch.nn.LSTM", "keras.layers.LSTM", "gluon.rnn.LSTM", "flax OptimizedLSTMCell"),
        (
            "Gates stand in the order i, f, g, o, as in PyTorch, Keras and MXNet; ONNX has i, o, f, c and TensorFlow "
            "1 i, "
            "j, f, o.",
            "Nothing is added to the forget gate: TensorFlow 1 adds 1 at run time, Keras draws the bias as 1.",
            "A state is one array, outputs then cells, so that decoders and beam search need not know the cell; others "
            "hold a pair, Flax with the cells first.",
            "There are no peepholes.",
        ),
    ),
    "GRUEncoder": Porting(
        ("seq2seq encoder", "d2l Seq2SeqEncoder"),
        ("The last state is that of the last valid step, not of the padding.",),
    ),
    "LSTMEncoder": Porting(
        ("seq2seq encoder",),
        ("Both directions stand side by side in a state; PyTorch and MXNet hold them as (layers · directions, ...).",),
    ),
    "Bridge": Porting(
        ("state bridge of OpenNMT", "reduce_states of pointer networks", "merge_mode of Keras"),
        (
            "'backward' is Bahdanau's: the backward direction has read the first word last.",
            "OpenNMT and others put a ReLU where here is the paper's tanh.",
        ),
    ),
    "BahdanauDecoder": Porting(
        ("RNNsearch", "d2l Seq2SeqAttentionDecoder", "attention decoder of translation courses"),
        (
            "The query is the previous output of the top layer; with score='scaled_dot' or 'dot' it is the variant "
            "that "
            "most courses train.",
            "The recurrent layer reads [context; token] here; others have [token; context]: swap the columns of "
            "rnn.0.W.",
            "The dense readout sees the new output alone; some also feed it context and token.",
            "Our GRU differs from the paper's in its reset gate; all else of the paper's form is Bridge('backward'), "
            "readout='maxout' and a GRUEncoder of two directions.",
        ),
    ),
    "LuongDecoder": Porting(
        ("Luong attention model", "OpenNMT InputFeedRNNDecoder", "tfa AttentionWrapper with attention_layer_size"),
        (
            "The recurrence comes first and the query is the current output: no context enters the recurrent layer but "
            "through input feeding.",
            "W_c reads [context; output] and has no bias. The recurrent layer reads [token; h̃].",
            "The paper trains an LSTM: cell='lstm'.",
        ),
    ),
    "FixedContextDecoder": Porting(
        ("encoder-decoder without attention", "d2l Seq2SeqDecoder", "the baseline of every course"),
        (
            "The context is the last open output of the encoder, which is the last state of one direction. With two, "
            "the backward half of that output has read one word alone.",
        ),
    ),
    "Translator": Porting(
        ("sequence-to-sequence model", "Seq2Seq", "encoder-decoder", "d2l EncoderDecoder"),
        (
            "Whether the decoder masks the padding of the source: here it always does where valid_lens says so; many "
            "ports hand the lengths to the encoder alone.",
            "Some start an LSTM's decoder with the encoder's output as its cells, too; here outputs and cells are both "
            "handed on.",
        ),
    ),
    "masked_cross_entropy": Porting(
        ("masked softmax cross-entropy loss", "sequence loss", "CrossEntropyLoss(ignore_index=...)"),
        (
            "Over what the mean goes: here over the open tokens of the batch, as PyTorch with ignore_index; "
            "textbooks take the mean over all steps of a sentence, padding too, and then the sum over sentences, which "
            "is another learning rate for every batch.",
            "A mask that multiplies the losses lets NaN of padded steps through to the gradient.",
        ),
    ),
    "clip_by_global_norm": Porting(
        ("gradient clipping", "clip_grad_norm_", "grad_clipping", "global_clipnorm of Keras"),
        (
            "PyTorch's clip_grad_norm_ adds 1e-6 to the norm, Gluon's clip_global_norm 1e-8; optax, TensorFlow and "
            "this one add nothing.",
            "Keras' clipnorm is of each gradient by itself, its clipvalue of each entry: neither keeps the direction.",
            "The norm goes over the canonical parameters: a second recurrent bias, where a framework has one, would "
            "count twice.",
        ),
    ),
    "sgd": Porting(
        ("gradient descent", "SGD without momentum"),
        ("Gluon's Trainer.step(n) divides the gradients by n.", "Keras keeps the learning rate in float32."),
    ),
    "adam": Porting(
        ("Adam", "adaptive moment estimation"),
        (
            "Where epsilon goes: outside the root of the corrected moment in PyTorch, optax and here; Keras and MXNet "
            "add it to the root of the uncorrected one, which is this one with epsilon · √(1 - beta2ᵗ) at step t.",
            "Keras begins with epsilon 1e-7, the others with 1e-8.",
            "In float16, 1e-8 is 0, and a gradient of 0 gives NaN.",
        ),
    ),
}
"""Each function and layer, in the order of the specification."""

DECODING = (
    "Beam search divides the sum of logarithms by ((5 + n)/6)^α, n counting the end token, as Wu et al. do. Hugging "
    "Face "
    "and fairseq divide by n^α; OpenNMT offers both.",
    "Finished hypotheses stay in the beam and are ranked among the running ones; others move them to a list of their "
    "own "
    "and may stop when it is full.",
)
"""The porting pitfalls of every decoder."""
