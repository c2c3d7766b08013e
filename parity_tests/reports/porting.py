"""Other names and porting pitfalls of each function and layer, for its page; no implementation reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Porting:
    """Other names of a function or layer, and differences elsewhere, a sentence or two each."""

    also: tuple[str, ...]
    pitfalls: tuple[str, ...] = ()


RULE = "The result is one mask for all sequences, (1, queries, keys); combine it with lengths by attention_mask."

PORTING: dict[str, Porting] = {
    "attention_mask": Porting(
        ("padding mask", "sequence mask", "key padding mask"),
        (
            "True means 'may attend' here, in Keras, Flax, ONNX and scaled_dot_product_attention of PyTorch; in "
            "PyTorch's MultiheadAttention True means 'hidden'; Hugging Face takes 1 and 0, and adds a large negative "
            "number inside.",
            "A length is a whole number of any integer type; a float length is refused.",
        ),
    ),
    "causal_mask": Porting(
        ("look-ahead mask", "subsequent mask", "autoregressive mask", "tril"),
        (
            RULE,
            "Top left: the first query is aligned with the first key, offset=0. So do is_causal of PyTorch and of ONNX "
            "without a cache, jax.nn and Keras.",
            "Bottom right: the last query is aligned with the last key, offset=num_keys - num_queries, below 0 with "
            "more queries than keys. So do FlashAttention from 2.1 on, and any step behind a cache.",
        ),
    ),
    "window_mask": Porting(
        ("sliding window", "band", "local mask"), (RULE, "A window of left=w includes the keys at distance w.")
    ),
    "block_mask": Porting(("chunked attention", "block-local attention"), (RULE,)),
    "stride_mask": Porting(
        ("strided attention", "dilated attention"),
        (RULE, "The strides of the Sparse Transformer also look back only: combine with causal_mask by mask_and."),
    ),
    "global_mask": Porting(("global attention of Longformer", "global tokens"), ()),
    "mask_and": Porting(("intersection of masks",), ()),
    "mask_or": Porting(("union of masks",), ()),
    "from_key_padding_mask": Porting(
        ("key_padding_mask of torch.nn.MultiheadAttention", "src_key_padding_mask", "inverted padding mask"),
        (
            "In PyTorch's MultiheadAttention and Transformer layers True means 'hidden', in its "
            "scaled_dot_product_attention 'may attend'. A mask that is not converted hides the sentence and shows the "
            "padding; if no sequence is padded, every row is fully masked.",
            "The attention_mask of Hugging Face, (batch, keys) with 1 for an open key, is not a key padding mask: "
            "convert it by (attention_mask != 0)[:, None].",
            "PyTorch also takes a floating key_padding_mask, which it adds to the scores: convert it by "
            "from_additive_mask(key_padding_mask[:, None]).",
        ),
    ),
    "to_key_padding_mask": Porting(
        ("~mask for torch.nn.MultiheadAttention",),
        (
            "In a boolean attn_mask of PyTorch's MultiheadAttention True means 'hidden', too: pass ~mask there, and "
            "mask itself to scaled_dot_product_attention.",
        ),
    ),
    "from_additive_mask": Porting(
        ("float attn_mask", "extended attention mask", "attention bias", "bias of -1e9"),
        (
            "A bias in the array is lost: pass that of ALiBi or of relative positions as bias to an attention layer, "
            "in which -inf hides, too.",
            "A mask of 1 and 0 is not additive, and all of it would be open: compare it with 0 instead.",
            "Pass a mask of two axes, (queries, keys), as additive_mask[None].",
            "Common fills are -1e4 (float16), -1e6, -1e9, the lowest finite number, and -inf; an open key may have a "
            "bias down to the threshold.",
        ),
    ),
    "to_additive_mask": Porting(
        ("masked_fill(~mask, -inf)", "(1 - mask) * -1e9", "extended attention mask"),
        (
            "In a fully masked row, a plain softmax returns NaN with -inf, and uniform weights, over the padding too, "
            "with the lowest finite number. masked_softmax takes the boolean mask and returns 0.",
            "The spacing of float16 at its lowest finite number is 32: adding a score of -16 to it gives -inf, adding "
            "17 the next higher number. The sum of two such masks is -inf in any dtype: combine masks by mask_and "
            "first.",
            "The lowest finite float32 is -inf in float16: make the mask in the dtype of the scores.",
        ),
    ),
    "masked_softmax": Porting(
        ("softmax with a mask", "sequence softmax"),
        (
            "A query that may attend to nothing gets weights 0 here. PyTorch returns NaN in some functions and 0 in "
            "others; Keras, and any fill of -1e6 or -1e9, returns uniform weights.",
            "A finite fill wins over real scores below it, and overflows in float16.",
        ),
    ),
    "dot_score": Porting(
        ("Luong dot", "unscaled dot product"),
        (
            "Keras' Attention and the DotProductAttention of many courses are unscaled by default; scaled_dot_score is"
            " scaled.",
        ),
    ),
    "scaled_dot_score": Porting(
        ("scaled dot-product", "Transformer attention"),
        (
            "The scale is 1/√features of a key in one head: the square root of the head size, not of the model size.",
            "softcap bounds the scaled scores, before anything is added to them or hidden, as in Gemma 2 and in "
            "Attention-24 of ONNX; behind a mask, it would give hidden keys a weight.",
        ),
    ),
    "additive_score": Porting(
        ("Bahdanau", "mlp", "perc", "concat (of some)"),
        (
            "Without the tanh, the query has no effect: v·(q + k) = v·q + v·k, and the softmax cancels the first term,"
            " which is the same for all keys.",
            "Keras' AdditiveAttention has no projections: it is this function, with its scale as w_v.",
            "There are no biases here: one of W_q and one of W_k would be redundant, and one after w_v would have no "
            "effect.",
        ),
    ),
    "cosine_score": Porting(
        ("content addressing of Neural Turing Machines", "normalised dot product"),
        (
            "An epsilon in the norm changes every score slightly, and makes the gradients of zero vectors large; here "
            "they are 0.",
        ),
    ),
    "location_score": Porting(
        ("location-based attention", "attention of the older PyTorch translation tutorial"),
        ("The tutorial scores [embedded token; state] rather than the state, and has a bias.",),
    ),
    "gaussian_score": Porting(("RBF kernel", "Gaussian kernel", "kernel of Nadaraya-Watson regression"), ()),
    "attention_pooling": Porting(
        ("attention readout", "glimpse", "context vector"),
        (
            "Dropout acts on the weights, and the returned weights are those before dropout; Keras returns "
            "those after it.",
        ),
    ),
    "linear_attention": Porting(
        (
            "LinearAttention and CausalLinearAttention of fast_transformers",
            "kernelised attention",
            "linear transformer",
        ),
        (
            "It is another function than attention by a softmax: no weights of a trained softmax move to it.",
            "Queries are not scaled by 1/√features, which would change the result: φ is not linear.",
            "Written as elu(x) + 1, features below the eps of the dtype are 0: in float32, those of x < -17.",
            "fast_transformers adds 1e-6 to the divisor, which shrinks contexts of small features, and expects arrays "
            "as (batch, steps, heads, features).",
            "A mask hides keys from all queries: (batch, 1, keys). Keys that are cleared before φ have features of 1, "
            "and count in the divisor.",
        ),
    ),
    "linear_attention_step": Porting(
        ("RecurrentLinearAttention of fast_transformers", "the Transformer as an RNN"),
        (
            "The sums contain the key and value of the step itself; they are 0 before the first step.",
            "fast_transformers keeps both sums in a list, its state.",
        ),
    ),
    "DotProductAttention": Porting(
        ("scaled dot-product attention", "keras.layers.Attention(use_scale=...)", "d2l DotProductAttention"),
        (
            "With scale=1 it is Luong's dot.",
            "bias is the float attn_mask of PyTorch, the bias of Flax and jax.nn, and the float attn_mask of ONNX. It "
            "has two axes, or as many as the scores: (batch, queries, keys) is not broadcast over heads.",
            "A key-value cache is a memory that `extend` adds steps to: past_key and past_value of ONNX, "
            "past_key_values of Hugging Face, decode=True of Flax; with position, their static cache.",
        ),
    ),
    "AdditiveAttention": Porting(
        ("Bahdanau attention", "MLP attention", "tfa BahdanauAttention", "OpenNMT 'mlp'"),
        (
            "Bahdanau's decoder queries with the previous state, Luong's with the current one: the decoders differ by "
            "more than the score. TensorFlow Addons' AttentionWrapper queries with the current state for both.",
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
            "The paper has no bias; where torch.nn.Linear projects the pair, there is one: bias=True, in a decoder "
            "score='concat_bias'.",
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
        ("w is the inverse of the width, and is squared with the difference.",),
    ),
    "LocalAttention": Porting(
        ("local-m (monotonic)", "local-p (predictive)", "Luong local attention"),
        (
            "'Global' and 'local' refer to the number of visible keys; neither Bahdanau's attention nor Luong's is "
            "local by itself.",
            "S is the valid length of the sequence, not the padded one. The Gaussian has σ = window/2, and the weights"
            " are not normalised again after it: they add up to less than 1.",
            "Positions count from 0.",
        ),
    ),
    "HardAttention": Porting(
        ("stochastic attention", "argmax attention", "Gumbel-max sampling"),
        (
            "No gradient reaches the scores: train them by a score-function estimator with log_prob, as the paper "
            "does; its terms of entropy and of a moving-average baseline are the caller's. A straight-through "
            "Gumbel-softmax is a different method.",
            "log_prob of the drawn weights is log_prob of torch.distributions.Categorical; log_prob of soft weights is "
            "minus their cross-entropy.",
        ),
    ),
    "LowRankAttention": Porting(
        ("Linformer attention", "linear attention with projected keys"),
        (
            "In code that shares one projection of all keys and values, E and F are the same array; where it is shared "
            "by heads or layers, the paper's E_i are equal.",
            "A causal mask has no meaning here: every sum contains later positions.",
            "Where padding is not cleared before it is summed, as in most ports, an answer depends on its contents.",
        ),
    ),
    "CompressedAttention": Porting(
        ("memory-compressed attention", "strided convolutions of keys and values"),
        (
            "A Conv1d's weight (features out, features in, stride) becomes W_k by swapping its last two axes and "
            "joining them; Keras' and Flax's kernel (stride, features in, features out) by joining the first two and "
            "transposing.",
            "Frameworks leave out the keys that do not fill the last block, unless they are padded: here zeros do, at "
            "the end. padding='same' may put some of them at the front.",
            "A block that is open in part counts whole, with zeros for what is hidden.",
            "The paper's first block attends to nothing that is compressed, so that a decoder stays causal; here "
            "lengths and mask are the same for all queries.",
        ),
    ),
    "InducedAttention": Porting(
        ("ISAB (induced set attention block)", "attention with inducing points", "attention to learned latents"),
        (
            "The paper's block adds residual connections, feed-forward networks and, optionally, normalizations to "
            "both attentions; LayerNorm and FeedForward around this layer make it.",
            "The paper's own code divides scores by the root of all features, not of those of a head.",
            "inducing has no batch axis here; as a parameter of shape (1, points, features), it is copied without it.",
        ),
    ),
    "SegmentAttention": Porting(
        ("Transformer-XL attention", "segment-level recurrence", "RelPartialLearnableMultiHeadAttn"),
        (
            "The paper's own code joins the projections: qkv_net's weight (3 features, features in) has W_q, W_k and "
            "W_v one below the other. r_net is W_r, o_net W_o, r_w_bias u and r_r_bias v; there are no biases. Its "
            "layer contains dropout, the residual connection and a normalization, too.",
            "Its positional embedding has all sines first, then all cosines: permute the columns of W_r by "
            "position_permutation.",
            "Its arrays are (steps, batch, features), and True in its mask hides a key. Its shift leaves numbers of "
            "the next row at later keys, which the causal mask alone hides.",
            "The memory of a layer is the inputs of that layer, oldest first, without gradients: detach them, or "
            "stop_gradient. A memory that begins as zeros, as in TensorFlow's version, is attended to unless mask "
            "hides it; here previous may be None.",
            "Distances are those of the keys that are passed: a memory that is cut to its last steps needs no other "
            "change.",
        ),
    ),
    "NadarayaWatson": Porting(
        ("kernel regression", "kernel smoother", "attention pooling of d2l"),
        ("With learned=True, the initial w is 1/width. If the training queries are the keys, mask each query's key.",),
    ),
    "MultiHeadAttention": Porting(
        ("torch.nn.MultiheadAttention", "keras.layers.MultiHeadAttention", "flax.nnx.MultiHeadAttention"),
        (
            "Head h uses the rows from h·d to (h + 1)·d - 1 of W_q, W_k and W_v, d being the head size, and the same "
            "columns of W_o. PyTorch stacks the three in in_proj_weight; Keras and Flax store (features, heads, head "
            "size).",
            "PyTorch returns the mean of the heads' weights, as here; Keras returns those of every head, as "
            "per_head=True does.",
            "There are biases by default, as in PyTorch and Keras; the paper and d2l have none.",
            "The bias of the keys has no effect with dot, scaled_dot and general: its gradient is 0 up to rounding.",
            "head_mask multiplies the output of a head, not its weights.",
            "Heads that share keys are neighbours, as with repeat_interleave, in Llama and with enable_gqa of PyTorch; "
            "keys that are tiled belong to other heads.",
            "With rotary_layout, every feature of a head is rotated, as in Llama, at the rates of the head size. "
            "Keys are prepared rotated, so that a cache is extended without touching them; the queries of a step get "
            "their position as offset.",
        ),
    ),
    "ablation_importance": Porting(("head ablation", "leave-one-head-out"), ()),
    "taylor_importance": Porting(
        ("gradient-based head importance", "sensitivity of a head mask"),
        ("It is the mean over examples of absolute values; in the absolute value of the mean, examples would cancel.",),
    ),
    "attention_rollout": Porting(
        ("rollout of attention weights",),
        (
            "The last layer is the leftmost factor. Weights stacked from the top down give another product.",
            "The paper and its code take equal shares, residual=0.5; adding the identity and dividing each row by its "
            "sum is the same, as long as rows sum to 1.",
            "Heads are averaged. Variants for images take their maximum, or leave out small weights.",
            "Weights must be those before dropout, as layers here return them: pass per_head=True, and stack them.",
        ),
    ),
    "SinusoidalPositions": Porting(
        ("sinusoidal positional encoding", "timing signal"),
        (
            "Sines and cosines alternate in the paper and in d2l; tensor2tensor and fairseq put all sines first. "
            "position_permutation converts between the two.",
            "tensor2tensor's rates end at exactly 1/10000: the exponent is divided by features/2 - 1, in the paper by "
            "features/2. fairseq counts positions from padding_idx + 1.",
            "Angles in float32 are wrong in the fourth digit at position 10,000; here the table is computed in float64"
            " and rounded once.",
        ),
    ),
    "LearnedPositions": Porting(
        ("position embedding", "absolute positions of BERT and GPT-2"),
        ("fairseq and BART count from 2 (padding_idx + 1): pass that as offset.",),
    ),
    "RotaryPositions": Porting(
        ("RoPE", "rotary position embedding", "apply_rotary_pos_emb", "rotate_half"),
        (
            "Neighbours are a pair (interleaved) in the paper, in Meta's Llama, in GPT-J and, by default, in "
            "rotary-embedding-torch; features i and i + features/2 (concatenated) in GPT-NeoX, in Hugging Face's "
            "Llama, Mistral, Qwen and Gemma, and, by default, in ONNX RotaryEmbedding, FlashAttention and MLX.",
            "Hugging Face's Llama has permuted the rows of W_q and W_k of each head, since scores do not change if "
            "both are permuted: by position_permutation, the same in each head. A checkpoint without that permutation, "
            "read with the other layout, fails without an error.",
            "Queries and keys are rotated, values are not; keys once, before they enter a cache. With n cached keys, "
            "offset of the next queries is n.",
            "Positions in bfloat16 are rounded from 257 on, in float16 from 2049 on. Angles in float32 are wrong in "
            "the fourth digit at position 10,000.",
            "Some models rotate a part of the features only (rotary_dim of GPT-J, partial_rotary_factor): slice the "
            "inputs, and give the size of the part as features. Rates that are scaled for longer contexts (YaRN, "
            "Llama 3.1) have no base.",
        ),
    ),
    "position_permutation": Porting(("interleave", "de-interleave"), ()),
    "LayerNorm": Porting(
        ("torch.nn.LayerNorm", "keras.layers.LayerNormalization", "flax.nnx.LayerNorm", "gluon.nn.LayerNorm"),
        (
            "epsilon is 1e-5 in PyTorch and Gluon, 1e-3 in Keras, 1e-6 in Flax, and 1e-12 in BERT; no file of weights "
            "contains it.",
            "The variance divides by the number of features: torch.std and numpy.std(ddof=1) divide by one less.",
            "epsilon is added to the variance, not to its root, as the copy in The Annotated Transformer does.",
        ),
    ),
    "RMSNorm": Porting(
        ("torch.nn.RMSNorm", "keras.layers.RMSNormalization", "flax.nnx.RMSNorm", "T5LayerNorm", "LlamaRMSNorm"),
        (
            "epsilon is 1e-6 in Keras, Flax and T5; PyTorch's default is the eps of the dtype, 1.2e-7 in float32.",
            "Gemma's weights are the gain minus 1: add 1.",
        ),
    ),
    "FeedForward": Porting(
        ("position-wise feed-forward network", "MLP", "GLU, GEGLU and SwiGLU, if gated"),
        (
            "jax.nn.gelu and flax.nnx.gelu are the approximation by a tanh unless approximate=False; those of PyTorch, "
            "TensorFlow and Keras are the exact function unless asked. GPT-2 was trained with the tanh, BERT without.",
            "Llama calls W_1, W_3 and W_2 gate_proj, up_proj and down_proj. torch.nn.functional.glu activates the "
            "second half of its input.",
            "dropout acts on the hidden features, as in torch.nn.TransformerEncoderLayer; the paper drops only what is "
            "added to the inputs.",
        ),
    ),
    "alibi_bias": Porting(
        ("ALiBi", "attention with linear biases", "build_alibi_tensor"),
        (
            "It is added to the scaled scores: pass it as bias to an attention layer. There is no scale in it.",
            "With fewer queries than keys, as in a step with a cache, the queries are usually the last ones: offset is "
            "num_keys - num_queries, which FlashAttention takes for granted. Without it the first query is at the "
            "first key.",
            "BLOOM and MPT in Hugging Face add slope · key position, which differs by a constant of each row, to which "
            "a softmax is invariant. That holds for causal attention alone: without a mask it is no bias by distance.",
            "Where the number of heads is no power of two, slopes are those of the authors' code, as in BLOOM, MPT and "
            "Baichuan, and not sorted; one geometric sequence, as in the paper's text, gives others.",
            "In float16 a bias below -65504 is -inf and hides the key.",
        ),
    ),
    "relative_buckets": Porting(
        ("_relative_position_bucket", "relative_position_bucket"),
        (
            "The relative position is that of the key minus that of the query (memory - query): in both directions, "
            "the second half of the buckets is for keys after the query.",
            "T5's logarithm is in float32 and may fall short of a whole number. In the published models, with 32 "
            "buckets and max_distance 128, every bucket is the same as here, and so with any power of two of buckets "
            "from 4 to 256 and max_distance 20 to 20,000 that was tried. With 17 buckets, one direction and "
            "max_distance 27, distance 12 is in bucket 10 by NumPy and TensorFlow, and in 11 by PyTorch and here.",
        ),
    ),
    "relative_bias": Porting(
        ("relative_attention_bias of T5", "relative position bias", "T5RelativeEmbedding"),
        (
            "T5 does not scale its scores, and adds the bias to them: pass it as bias, with scale=1.",
            "The table of the first layer serves all layers, one for the encoder with bidirectional=True, and one for "
            "the decoder with bidirectional=False; attention to the encoder has none. T5 v1.1 does the same.",
            "The table is (num_buckets, heads) here and in Hugging Face, and (heads, num_buckets) in T5X.",
            "num_buckets counts both directions.",
        ),
    ),
    "GRU": Porting(
        ("torch.nn.GRU", "keras.layers.GRU(reset_after=True)", "gluon.rnn.GRU", "flax GRUCell"),
        (
            "The reset gate is applied after the recurrent product and its bias, as in cuDNN; in the first paper, and "
            "in Keras with reset_after=False, before. Weights cannot be converted between the two.",
            "The order of the gates is r, z, n; that of Keras is z, r, h. z keeps the old state.",
            "PyTorch and MXNet have a second bias, which is redundant except that of n.",
        ),
    ),
    "LSTM": Porting(
        ("torch.nn.LSTM", "keras.layers.LSTM", "gluon.rnn.LSTM", "flax OptimizedLSTMCell"),
        (
            "The order of the gates is i, f, g, o, as in PyTorch, Keras and MXNet; ONNX has i, o, f, c and TensorFlow "
            "1 has i, j, f, o.",
            "Nothing is added to the forget gate: TensorFlow 1 adds 1 at run time, Keras initialises the bias to 1.",
            "A state is one array, outputs then cells, so that decoders and beam search do not depend on the cell; "
            "other libraries have a pair, Flax with the cells first.",
            "There are no peepholes.",
        ),
    ),
    "GRUEncoder": Porting(
        ("seq2seq encoder", "d2l Seq2SeqEncoder"),
        ("The last state is that of the last valid step, not of the padding.",),
    ),
    "LSTMEncoder": Porting(
        ("seq2seq encoder",),
        (
            "A state has both directions side by side in its features; PyTorch and MXNet have (layers · "
            "directions, ...).",
        ),
    ),
    "Bridge": Porting(
        ("state bridge of OpenNMT", "reduce_states of pointer networks", "merge_mode of Keras"),
        (
            "'backward' is the method of Bahdanau et al.: the backward direction reads the first word last.",
            "OpenNMT and others use a ReLU in place of the paper's tanh, which is used here.",
        ),
    ),
    "BahdanauDecoder": Porting(
        ("RNNsearch", "d2l Seq2SeqAttentionDecoder", "attention decoder of translation courses"),
        (
            "The query is the previous output of the top layer; with score='scaled_dot' or 'dot' it is the variant of "
            "most courses.",
            "The recurrent layer reads [context; token] here, elsewhere often [token; context]: swap the columns of "
            "rnn.0.W.",
            "The dense readout takes only the new output; some libraries also feed it context and token.",
            "The GRU differs from the paper's in its reset gate. For the rest of the paper's form, use "
            "Bridge(method='backward'), readout='maxout' and a bidirectional GRUEncoder.",
        ),
    ),
    "LuongDecoder": Porting(
        ("Luong attention model", "OpenNMT InputFeedRNNDecoder", "tfa AttentionWrapper with attention_layer_size"),
        (
            "The recurrent layer runs first, and its current output is the query: context enters it only through input"
            " feeding.",
            "W_c reads [context; output] and has no bias. The recurrent layer reads [token; h̃].",
            "The paper trains an LSTM: cell='lstm'.",
        ),
    ),
    "FixedContextDecoder": Porting(
        ("encoder-decoder without attention", "d2l Seq2SeqDecoder", "the baseline of every course"),
        (
            "The context is the last open output of the encoder, which is the last state with one direction. With two,"
            " the backward half of that output has read only one word.",
        ),
    ),
    "TransformerEncoderLayer": Porting(
        ("torch.nn.TransformerEncoderLayer", "keras_hub TransformerEncoder", "Transformer block"),
        (
            "PyTorch's layer has norm_first=False, as the paper; GPT-2, ViT and Llama normalize what a sublayer reads. "
            "Weights fit both, and only the outputs tell.",
            "A key_padding_mask of PyTorch is True where a step is hidden. Its fast path returns 0 at padded steps, "
            "its slow path does not.",
            "PyTorch's bias=False leaves out the biases of LayerNorm, too, as here.",
        ),
    ),
    "TransformerDecoderLayer": Porting(
        ("torch.nn.TransformerDecoderLayer", "keras_hub TransformerDecoder"),
        (
            "Self-attention is always causal; PyTorch's is only with a tgt_mask.",
            "valid_lens are those of the encoder's outputs. What stands in a target behind its end has no effect on "
            "earlier steps, and is left to the loss.",
        ),
    ),
    "TransformerEncoder": Porting(
        ("Transformer encoder", "BERT, with learned positions", "GPT, with causal=True"),
        (
            "Embedded tokens are multiplied by √features, as in the paper; BERT and GPT-2 do not: divide their "
            "embedding by √features.",
            "torch.nn.TransformerEncoder has neither embedding nor positions, and its last norm is an argument. Here "
            "norm='pre' has one, unless last_norm=False; torch.nn.Transformer has one in any case.",
            "T5 is positions='relative', 32 buckets, score='dot', norm='pre', rms=True and bias=False: the table is in "
            "its first layer, and used by all; its embedding is not scaled.",
            "Llama is positions='rotary', norm='pre', rms=True, gated=True, activation='silu' and bias=False.",
            "ALiBi's models are causal; without causal=True, later steps fall off as earlier ones do.",
        ),
    ),
    "TransformerDecoder": Porting(
        ("Transformer decoder", "seq2seq Transformer"),
        (
            "The state has room for max_steps from the start, as compilers need it: one that grows by each step is "
            "compiled anew.",
            "The position of a step is its own, per sequence: a cache that counts steps for the whole batch is wrong "
            "where sequences begin apart.",
            "Fairseq and T5 share the embedding with the logits, as tied=True does, without a bias; T5 then divides by "
            "√features what it gives the logits.",
            "With positions='relative', the buckets are those of earlier steps alone, and attention to the encoder has "
            "no bias, as in T5.",
        ),
    ),
    "Translator": Porting(
        ("sequence-to-sequence model", "Seq2Seq", "encoder-decoder", "d2l EncoderDecoder"),
        (
            "The decoder masks the padding of the source if valid_lens is given; many ports pass the lengths to the "
            "encoder only.",
            "Some libraries initialise the cells of an LSTM decoder with the encoder's output; here the decoder gets "
            "outputs and cells, and behind a GRU encoder (encoder_cell='gru') cells of 0.",
        ),
    ),
    "TransformerTranslator": Porting(
        ("torch.nn.Transformer", "sequence-to-sequence Transformer", "d2l Transformer"),
        (
            "torch.nn.Transformer takes what is embedded already, norms both stacks at their end even with "
            "norm_first=False (last_norm=True), and hides the padding of the source from the decoder only with "
            "memory_key_padding_mask, which is not its src_key_padding_mask.",
            "Source and target have an embedding each, and the logits a projection of their own; Vaswani et al. share "
            "all three: shared=True and tied=True.",
        ),
    ),
    "masked_cross_entropy": Porting(
        ("masked softmax cross-entropy loss", "sequence loss", "CrossEntropyLoss(ignore_index=...)"),
        (
            "The mean is over the open tokens of the batch, as in PyTorch with ignore_index. Textbooks average over "
            "all steps of a sentence, padding included, and then sum over sentences: the learning rate then varies "
            "from batch to batch.",
            "Multiplying the losses by a mask passes NaN of padded steps on to the gradient.",
        ),
    ),
    "clip_by_global_norm": Porting(
        ("gradient clipping", "clip_grad_norm_", "grad_clipping", "global_clipnorm of Keras"),
        (
            "PyTorch's clip_grad_norm_ adds 1e-6 to the norm, Gluon's clip_global_norm 1e-8; optax, TensorFlow and "
            "this one add nothing.",
            "Keras' clipnorm clips each gradient by itself, its clipvalue each entry: neither preserves the direction.",
            "The norm is over the canonical parameters: the second recurrent bias of some frameworks would count "
            "twice.",
        ),
    ),
    "sgd": Porting(
        ("gradient descent", "SGD without momentum"),
        ("Gluon's Trainer.step(n) divides the gradients by n.", "Keras keeps the learning rate in float32."),
    ),
    "adam": Porting(
        ("Adam", "adaptive moment estimation"),
        (
            "epsilon is added outside the root of the corrected moment in PyTorch, optax and here. Keras and MXNet add"
            " it to the root of the uncorrected moment, which agrees at step t if their epsilon is epsilon · √(1 - "
            "beta2ᵗ).",
            "Keras' default for epsilon is 1e-7, that of the others 1e-8.",
            "In float16, 1e-8 is 0, and a gradient of 0 gives NaN.",
        ),
    ),
    "patches": Porting(
        ("patchify", "im2col without overlap", "space to depth", "unfold with stride"),
        (
            "PyTorch's Conv2d takes images as (batch, channels, height, width), and has its weight as (out, channels, "
            "row, column): W_p is weight.permute(0, 2, 3, 1) with its last three axes joined. MXNet's is the same.",
            "The filter of TensorFlow and Flax is (row, column, channels, out): W_p is its transpose, with the first "
            "three axes joined in this order.",
            "torch.nn.functional.unfold gives features as (channel, row, column), and a patch as a column. "
            "tf.image.extract_patches gives them in the order of here.",
        ),
    ),
    "VisionTransformer": Porting(
        ("ViT", "torchvision vit_b_16", "timm vit_base_patch16_224", "Hugging Face ViTForImageClassification"),
        (
            "The epsilon of the paper's code, timm and torchvision is 1e-6, that of Hugging Face 1e-12; here it is "
            "1e-05, as in the other layers.",
            "timm and torchvision have W_q, W_k and W_v in one matrix, one below the other; Hugging Face has three.",
            "The class token and the positions are (1, 1, features) and (1, patches + 1, features) there.",
            "Positions belong to a size of the image: for another one they are interpolated as a grid, without the "
            "first, that of the class token.",
            "Before fine-tuning, the paper's models have a hidden layer with a tanh in front of dense. What reads the "
            "mean of the patches, as timm with global_pool='avg', is another function with the same weights.",
        ),
    ),
}
"""Each function and layer, in the order of the specification."""

DECODING = (
    "Beam search divides the sum of logarithms by ((5 + n)/6)^α, n counting the end token, as Wu et al. do. Hugging "
    "Face and fairseq divide by n^α; OpenNMT offers both.",
    "Finished hypotheses stay in the beam and are ranked among the running ones; other libraries move them to a "
    "separate list and may stop when it is full.",
)
"""The porting pitfalls of every decoder."""
