"""Costly calls of libraries for models, tensors, texts that they read, and pictures."""

from __future__ import annotations

from sonde.advice.costly_calls import SHORT, WORKING, CostlyCall
from sonde.advice.costly_standard import name_calls, name_frames

_FUNCTIONS = "torch._C._VariableFunctionsClass"
_TENSOR = "torch._C.TensorBase"

MODELS = (
    CostlyCall(
        "pixels_singly", "Pixels of an image are read or set one by one",
        "turn it into an array (`numpy.asarray(image)`), work on all of it, and turn it back "
        "(Image.fromarray); lookup tables with Image.point",
        name_frames("/PIL/Image.py", "getpixel putpixel getdata putdata"),
        ("PIL._imaging.PixelAccess.__getitem__", "PIL._imaging.PixelAccess.__setitem__"), 20,
    ),
    CostlyCall(
        "fonts_read", "Fonts are looked for and read again and again",
        "load each font once and keep it",
        (*name_frames("/PIL/ImageFont.py", "truetype load_default FreeTypeFont.__init__"),
         *name_frames("/matplotlib/font_manager.py", "findfont _findfont_cached addfont "
                      "_load_fontmanager findSystemFonts"), "/matplotlib/texmanager.py:"), (), 15,
        stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "pictures", "Decoding, resizing and writing pictures takes much of the time",
        "do it once and keep the small ones; decode JPEGs at the size that is needed "
        "(`image.draft('RGB', size)`), resize with `reducing_gap=2.0`, write PNGs with a low "
        "compress_level, in several threads",
        ("/PIL/Image.py:", "/PIL/ImageFile.py:", "/PIL/ImageOps.py:", "/imageio/", "/skimage/"),
        ("cv2.imread", "cv2.imdecode", "cv2.imwrite", "cv2.imencode", "cv2.resize"), 40,
    ),
    CostlyCall(
        "frames_sought", "A video is opened, or wound to a place, for each picture",
        "open it once and read the pictures in their order (grab() leaves some out)",
        ("/decord/video_reader.py:seek",), ("cv2.VideoCapture", "cv2.VideoCapture.set"), 20,
        stretch=SHORT,
    ),
    CostlyCall(
        "filters_made", "Filters for sound are computed again and again",
        "make the transform once (torchaudio.transforms.MelSpectrogram, Resample) and call it; of "
        "librosa, keep the basis (librosa.filters.mel)",
        ("/librosa/filters.py:", *name_frames("/torchaudio/functional/functional.py",
                                              "melscale_fbanks _get_sinc_resample_kernel")), (), 15,
        stretch=SHORT,
    ),
    CostlyCall(
        "figures_drawn", "Drawing with matplotlib takes much of the time",
        "keep one figure and change its data (set_data), draw fewer points and less often, without "
        "tight_layout or at a lower dpi, and close figures that are done",
        ("/matplotlib/", "/seaborn/", "/plotly/", "/_plotly_utils/", "/bokeh/"), (), 30,
    ),
    CostlyCall(
        "metrics_logged", "Recording the course of the training takes much of the time",
        "record every hundredth step, sums and not each value, histograms and pictures seldom, and "
        "several numbers with one call (add_scalars, log_metrics, one wandb.log)",
        ("/torch/utils/tensorboard/", "/tensorboard/", "/wandb/", "/mlflow/", "/comet_ml/",
         "/clearml/", "/neptune/", "/lightning/pytorch/loggers/", "/pytorch_lightning/loggers/"),
         (),
        20,
    ),
    CostlyCall(
        "metrics_twice", "A metric works out its value, and all of its state, at each step",
        "call `metric.update(…)` at each step and `compute()` at the end of the epoch: forward "
        "does both, and saves and restores the state", ("/torchmetrics/metric.py:forward",
        "/torchmetrics/metric.py:_forward_full_state_update",), (), 20,
    ),
    CostlyCall(
        "parameters_walked", "The modules of the model are walked through again and again",
        "keep the list (`parameters = list(model.parameters())`), and work on all of it with one "
        "call (torch._foreach_…)",
        name_frames("/torch/nn/modules/module.py", "_named_members named_parameters parameters "
                    "named_modules modules named_buffers buffers named_children children"), (), 15,
    ),
    CostlyCall(
        "states_copied",
        "Copies of the model's state, or averages of models, take much of the time",
        "copy less often, and only when it is better than the last; average with one call for all "
        "parameters (get_ema_multi_avg_fn, torch._foreach_lerp_)",
        name_frames("/torch/nn/modules/module.py", "state_dict _save_to_state_dict")
        + ("/torch/optim/swa_utils.py:", "/torch/nn/utils/convert_parameters.py:"), (), 20,
    ),
    CostlyCall(
        "gradients_clipped", "Clipping gradients takes much of the time",
        "`clip_grad_norm_(…, foreach=True)` does it with one call for all; leave out a second pass "
        "that only measures the norm (clip_grad_norm_ returns it)",
        ("/torch/nn/utils/clip_grad.py:",), (), 20,
    ),
    CostlyCall(
        "parameters_stepped", "The optimizer goes through the parameters one by one",
        "`foreach=True` or `fused=True` does it with one call for all of them",
        tuple(f"/torch/optim/{name}.py:_single_tensor_{name}"
              for name in ("adam", "adamw", "sgd", "rmsprop", "adagrad", "nadam", "radam")), (), 35,
    ),
    CostlyCall(
        "tensors_iterated", "A loop in Python goes through the elements of a tensor",
        "take it over once (`tolist()`), or work on the whole tensor (masks, gather, torch.where)",
        name_frames("/torch/_tensor.py", "__iter__ __contains__ __reversed__ __array__"), (), 20,
    ),
    CostlyCall(
        "tensors_repeated", "Tensors are repeated, so that others of the same shape can be used",
        "operations stretch them by themselves (`x[:, None] - y[None]`), and `expand` copies "
        "nothing",
        (), name_calls(_TENSOR, "repeat repeat_interleave tile")
        + name_calls(_FUNCTIONS, "repeat_interleave tile"), 20,
    ),
    CostlyCall(
        "tensors_sorted",
        "Sorting tensors, or looking for different values, takes much of the time",
        "where a few are needed, topk or kthvalue; of small whole numbers, bincount; sort once and "
        "ask with searchsorted",
        ("/torch/functional.py:_unique_impl", "/torch/_tensor.py:unique",
         "/torch/functional.py:_unique_consecutive_impl"),
        name_calls(_FUNCTIONS, "sort argsort topk unique_dim nonzero masked_select median quantile "
                   "_unique2 isin histc kthvalue")
        + name_calls(_TENSOR, "sort argsort topk nonzero masked_select median quantile kthvalue"),
        35,
    ),
    CostlyCall(
        "distances_of_all", "Distances of each with each take much of the time",
        "they grow with the square: take pieces (chunks), only what is near (a tree, faiss), or a "
        "product of matrices for the squares", ("/torch/functional.py:cdist",),
        name_calls(_FUNCTIONS, "cdist _cdist_forward pdist"), 35,
    ),
    CostlyCall(
        "memory_given_back", "Memory of the GPU is given back and measured again and again",
        "leave torch.cuda.empty_cache() out of the loop: what is given back must be asked for "
        "anew; "
        "memory_summary and memory_stats are for debugging",
        name_frames("/torch/cuda/memory.py", "empty_cache memory_summary memory_stats "
                    "memory_snapshot"), ("torch._C._cuda_emptyCache",), 10, stretch=SHORT,
    ),
    CostlyCall(
        "objects_gathered", "Python objects are pickled to be sent to the other ranks",
        "send tensors (all_gather_into_tensor, broadcast), and gather seldom: at the end of an "
        "epoch",
        name_frames("/torch/distributed/distributed_c10d.py", "all_gather_object gather_object "
                    "broadcast_object_list scatter_object_list _object_to_tensor "
                    "_tensor_to_object"), (), 15, state=WORKING,
    ),
    CostlyCall(
        "graphs_traced", "Models or functions are traced, exported or compiled again and again",
        "do it once, at the start, and keep the result; hand over inputs of the same shapes and "
        "types, and define what is compiled outside of the loop",
        ("/torch/jit/_trace.py:", "/torch/jit/_script.py:", "/torch/jit/frontend.py:",
         "/torch/fx/_symbolic_trace.py:", "/torch/onnx/", "/torch/ao/quantization/",
         "/numba/core/", "/jax/_src/compiler.py:", "/jax/_src/interpreters/",
         "/tensorflow/python/eager/polymorphic_function/tracing_compilation.py:"), (), 20,
    ),
    CostlyCall(
        "slow_tokens", "Texts are cut into tokens by a slow tokenizer, which is written in Python",
        "load the fast one (AutoTokenizer, a class whose name ends with Fast), make the tokens "
        "once "
        "and keep them",
        ("/transformers/tokenization_utils.py:", "/transformers/tokenization_python.py:"), (), 15,
    ),
    CostlyCall(
        "texts_tokenized", "Cutting texts into tokens takes much of the time",
        "hand over a list of many texts at once, make the tokens of a dataset once, in advance, "
        "and keep those of texts that recur",
        ("/transformers/tokenization_utils_fast.py:", "/transformers/tokenization_utils_base.py:",
         "/transformers/tokenization_utils_tokenizers.py:", "/tiktoken/core.py:", "/nltk/tokenize/",
         "/nltk/tag/", "/nltk/stem/", "/spacy/language.py:__call__", "/sentencepiece/"),
        ("tokenizers.Tokenizer.",), 25,
    ),
    CostlyCall(
        "pretrained_loaded", "Tokenizers, configurations or models are loaded again and again",
        "load each once, at the start, and keep it (functools.lru_cache)",
        ("/transformers/tokenization_utils_base.py:from_pretrained", "/transformers/models/auto/",
         "/transformers/configuration_utils.py:from_pretrained",
         "/transformers/pipelines/__init__.py:",
         "/transformers/processing_utils.py:from_pretrained", "/huggingface_hub/file_download.py:",
         "/spacy/util.py:load_model", "/spacy/__init__.py:load", "/tiktoken/load.py:",
         "/tiktoken/registry.py:", "/sentencepiece/__init__.py:Load"), ("cv2.CascadeClassifier",),
        15,
    ),
    CostlyCall(
        "logits_changed", "Changing the scores of the next token takes much of the time",
        "leave out processors that are not needed (no_repeat_ngram_size and the like go through "
        "all "
        "tokens so far in Python)", ("/transformers/generation/logits_process.py:",), (), 20,
    ),
    CostlyCall(
        "vectors_singly", "An index of vectors is asked, or filled, with one vector at a time",
        "hand over a matrix of many vectors: search and add work on all of them in parallel",
        ("/faiss/class_wrappers.py:",), (), 25, stretch=SHORT,
    ),
    CostlyCall(
        "environments_checked", "Each step of an environment is checked (gymnasium)",
        "`gymnasium.make(…, disable_env_checker=True)`",
        ("/gymnasium/utils/passive_env_checker.py:", "/gym/utils/passive_env_checker.py:",
         "/gymnasium/utils/env_checker.py:"), (), 10,
    ),
)  # fmt: skip
