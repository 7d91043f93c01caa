"""Kinds of work on data: text, files, lists, arrays, frames, numbers; see known_work.py."""

from __future__ import annotations

_ONCE = "if it is the same again, do it once and keep the result"
_TEXT = (
    "make text once and only if somebody reads it (for a log, ask isEnabledFor first or pass the "
    "object as an argument); collect pieces in a list and join them at the end"
)

# WorkKind, calls, what people do if it works for long, and if it waits for long: see WorkKind.
DATA_WORK: tuple[tuple[str, tuple[str, ...], str] | tuple[str, tuple[str, ...], str, str], ...] = (
    ("serialising and parsing", ("marshal", "msgpack", "google.protobuf", "pyarrow", "struct",
                                 "plistlib", "shelve", "dbm", "email", "mimetypes", "base64",
                                 "binascii", "quopri"),
     f"{_ONCE}; pass objects on and not their bytes, and work on many at a time"),
    ("serialising and parsing", ("json", "orjson", "ujson", "simplejson"),
     f"{_ONCE}; write only what has changed (append a line, a row of a database) and not the whole "
     "state each time, and not more often than it is read; orjson is several times faster, Parquet "
     "or a database better for much"),
    ("serialising and parsing", ("pickle", "cloudpickle", "dill", "copyreg"),
     "pass less (a path, a key, a piece) or in shared memory; keep large data in arrays "
     "(numpy.save), and save less often"),
    ("asking where a text file stands", ("io.TextIOWrapper.tell", "io.TextIOWrapper.seek"),
     "in text mode each tell() decodes anew what lies before it: open the file in binary mode and "
     "add up the lengths of its lines"),
    ("serialising and parsing", ("csv",),
     f"{_ONCE}: read the file once, into a dictionary by what is looked up, and not for each "
     "question; pandas.read_csv or pyarrow read large files many times faster"),
    ("serialising and parsing", ("xml", "lxml", "bs4", "html", "html5lib", "parsel", "etree",
                                 "Element", "xml.etree.ElementTree.Element"),
     "a find with a path looks through the tree each time: go through it once (iter) and keep a "
     "dictionary by the id that is looked up; parse each document once; lxml is faster than "
     "BeautifulSoup's html.parser, iterparse takes less memory"),
    ("serialising and parsing", ("yaml", "ruamel", "tomllib", "tomli", "toml", "configparser",
                                 "dotenv", "omegaconf", "hydra"),
     "read settings once, at the start, and keep them; for YAML, load with yaml.CSafeLoader"),
    ("regular expressions", ("re", "regex", "fnmatch", "sre_parse", "sre_compile"),
     "if single matches take long, leave no repetition inside a repetition (`(a+)+`) and make the "
     "parts exclude each other; if there are many, test with `in` or startswith first, join "
     "patterns into one, and compile them once"),
    ("copying", ("copy", "deepcopy"),
     "copy only what changes (copy.copy, dict(…), dataclasses.replace, a tensor's clone), less "
     "often, or make what is shared immutable"),
    ("copying files", ("shutil", "zipfile", "tarfile"),
     "move or link files and do not copy them, skip what is there already, and open an archive "
     "once", "copy less, larger pieces, and several files at a time"),
    ("compressing", ("gzip", "zlib", "bz2", "lzma", "zstandard", "brotli", "snappy", "lz4"),
     "use a lower level (gzip's is 9) or zstandard, compress larger pieces, and none twice"),
    ("passwords and keys", ("hashlib.pbkdf2_hmac", "hashlib.scrypt", "bcrypt", "argon2", "passlib",
                            "crypt", "cryptography", "Crypto", "jwt", "rsa", "nacl"),
     "this is slow on purpose: check a password once, at the login, and then a session or a token; "
     "keep derived keys; under asyncio, do it in a thread (asyncio.to_thread)"),
    ("hashing", ("hashlib", "hmac", "zlib.crc32", "md5", "sha1", "sha2", "sha3", "sha256", "sha512",
                 "blake2", "zlib.adler32", "hash"),
     "keep the digest of what has not changed (of a file: by its path, size and time of change); "
     "against accidents, zlib.crc32 or xxhash is faster"),
    ("text", ("pprint", "textwrap", "reprlib", "repr", "format", "string", "str.format",
              "str.__format__", "str.__mod__", "locale", "gettext"), _TEXT),
    ("text", ("str", "bytes", "bytearray", "unicodedata", "codecs", "ascii", "chr", "ord", "latin",
              "io.StringIO", "io.BytesIO"),
     "work on the whole text at once (one translate, one regular expression, one split) and not "
     "letter by letter or with one replace after the other; collect pieces in a list and join them "
     "at the end; keep what was made from the same text"),
    ("comparing texts", ("difflib", "Levenshtein", "rapidfuzz", "fuzzywuzzy", "thefuzz",
                         "jellyfish"),
     "comparing each with each grows with the square: compare equal ones first (a set), only those "
     "of the same length, beginning or group, and use rapidfuzz (process.cdist) in place of "
     "difflib"),
    ("files", ("glob", "os.walk", "os.scandir", "os.listdir", "os.stat", "os.lstat", "os.access",
               "os.path", "genericpath", "posixpath", "pathlib", "os.getcwd", "stat", "filecmp"),
     "ask the file system once (os.scandir of the folder) and keep the answer; do not look for the "
     "same file again each time",
     "ask the file system once (os.scandir of the folder) and keep the answer"),
    ("files", ("tempfile", "io", "open", "fsspec", "os", "mmap", "h5py", "zarr", "torch.load",
               "torch.save", "numpy.load", "numpy.save", "numpy.savez", "numpy.NpzFile",
               "numpy.loadtxt", "numpy.genfromtxt", "numpy.memmap", "safetensors", "linecache",
               "fileinput", "joblib.load", "joblib.dump"),
     f"{_ONCE}: read a file once and not for each question; read and write larger pieces, keep it "
     "open, and leave flushing to its buffer",
     "read or write more at a time, in another thread, or from a faster disk; keep what is read "
     "again, and call fsync less often"),
    ("dates and numbers as text", ("datetime", "dateutil", "_strptime", "time.strptime", "pytz",
                                   "strptime", "calendar", "time.strftime", "zoneinfo", "arrow",
                                   "pendulum"),
     "parse whole columns at once (pandas.to_datetime with a format) or with "
     "datetime.fromisoformat, and keep what was parsed (functools.lru_cache)"),
    ("dates and numbers as text", ("decimal", "fractions", "numbers", "statistics"),
     "count in whole numbers of the smallest unit, or use floats where they are exact enough"),
    ("sorting", ("sorted", "list.sort", "numpy.sort", "numpy.argsort"),
     "sort once after all changes and not after each; keep a list in order with bisect.insort, or "
     "a heap (heapq); for the few largest, heapq.nlargest"),
    ("sorting", ("heapq", "bisect", "sortedcontainers"), "see who asks so often"),
    ("searching in a list", ("in (list)", "in (tuple)", "in (dict_values)", "list.index",
                             "list.count", "list.remove", "tuple.index", "tuple.count",
                             "in (collections.deque)", "in (numpy.ndarray)", "in (str)"),
     "keep a set, or a dictionary by that key, beside the list: a search looks at one element "
     "after the other"),
    ("reaching into a deque", ("[] (collections.deque)", "[] = (collections.deque)",
                               "collections.deque.index", "collections.deque.insert",
                               "collections.deque.remove", "collections.deque.__getitem__"),
     "a deque is a chain: reaching into its middle walks along it. Keep a list (a ring: write at "
     "`i % size`) where single elements are asked for by their number, as random.sample does"),
    ("moving the elements of a list", ("list.insert", "list.pop", "del [] (list)",
                                       "bytearray.pop", "del [] (bytearray)"),
     "all elements behind it are moved each time: use collections.deque, or add at the end"),
    ("copying a long text or list", (
        "+ (str)", "+= (str)", "+ (bytes)", "+= (bytes)", "+ (list)", "+ (tuple)", "+= (tuple)",
        "[] (str)", "[] (bytes)", "[] (list)", "[] (tuple)", "list.copy", "dict.copy", "set.copy"),
     "a long text or list is copied each time: collect pieces and join them once, change it in "
     "place, count up a position and do not cut"),
    ("copying into a merged dictionary or list", ("{**}", "[*]", "dict.update", "list.extend",
                                                  "collections.ChainMap"),
     "all of it is copied each time: change it in place, or make it once at the end"),
    ("making lists, sets and dictionaries", (
        "list", "set", "dict", "tuple", "frozenset", "range", "enumerate", "zip", "map", "filter",
        "reversed", "collections", "itertools", "functools", "set.union", "set.intersection",
        "set.difference", "dict.items", "dict.keys", "dict.values", "iter", "next", "operator"),
     "make it once, outside of the loop, if it is the same again (`x in set(all)` makes the set "
     "for each x, `random.choice(list(all))` a list for each draw: keep a list beside it, or draw "
     "again until it fits); loops inside of loops, products and permutations grow with the product "
     "of their lengths: group by a key in a dictionary first"),
    ("adding up", ("sum", "math.fsum"),
     "if the same is added up again and again, keep a running total; of many numbers, use the sum "
     "of an array (numpy); of lists, itertools.chain"),
    ("looking for the smallest or largest", ("min", "max"),
     "if it is asked again after each change, keep a heap (heapq) or a sorted list (bisect)"),
    ("asking each element", ("any", "all", "isinstance", "getattr", "hasattr", "setattr", "len",
                             "callable", "issubclass", "type", "id"),
     "the loop around it takes the time: let a set or a dictionary answer, and take out of the "
     "loop what does not change"),
    ("numbers", ("math", "cmath", "divmod", "pow", "abs", "round", "int", "float", "bin", "hex",
                 "complex", "bool"),
     "numbers one by one are slow in Python: whole arrays (numpy), or a compiled loop (numba, "
     "Cython)"),
    ("looking up by a table of zeros and ones", ("torch._C._nn.one_hot",),
     "a one-hot vector times a matrix is one row of the matrix: nn.Embedding, F.embedding or an "
     "index (`weight[ids]`); cross_entropy takes the numbers of classes as they are"),
    ("drawing by weight", ("random.Random.choices", "numpy.random.choice",
                           "numpy.random._generator.choice", "numpy.random.mtrand.choice",
                           "torch._C._VariableFunctionsClass.multinomial"),
     "with weights, all of them are added up (and normed) at each call: draw many at once (k, "
     "size), or keep the running sum (random.choices with cum_weights; numpy.cumsum once, then "
     "searchsorted of random numbers; a tree of sums where weights change)"),
    ("random numbers", ("random", "secrets", "numpy.random", "uuid", "os.urandom"),
     "draw many at once (numpy.random.Generator, random.choices with k), and keep the generator; "
     "for identifiers a counter behind one random prefix will do"),
    ("exceptions", ("raise",),
     "where the exception is the usual case, ask first (`in`, dict.get, a default)"),
    ("single elements of arrays", ("[] (numpy", "[] = (numpy", "numpy.ndarray.item",
                                   "numpy.float64", "numpy.float32", "numpy.int64", "numpy.int32"),
     "work on whole arrays (slices, masks, numpy.where), turn the array into a list first "
     "(tolist), or compile the loop (numba)"),
    ("single elements of arrays", ("[] (torch", "[] = (torch", "torch._C.TensorBase.item",
                                   "torch._C.TensorBase.tolist", "torch.Tensor.__iter__",
                                   "torch._C.TensorBase.__getitem__", "torch.Tensor.__contains__",
                                   "torch._C.TensorBase.__setitem__", "torch._C.TensorBase.unbind"),
     "each element is an operation of its own: work on the whole tensor (masks, gather, scatter, "
     "index_add, bincount, torch.where, triu), or take it over once (tolist, numpy)"),
    ("random numbers", tuple(f"torch._C._VariableFunctionsClass.{name}" for name in (
        "rand", "randn", "randint", "randperm", "normal", "bernoulli", "rand_like",
        "randn_like"))
     + ("torch._C.TensorBase.normal_", "torch._C.TensorBase.uniform_"),
     "draw them where they are used (device=…), not on the host for a GPU; many at once; and once "
     "if they may be the same each time"),
    ("decompositions of matrices", ("torch._C._linalg", *(
        f"{package}.{name}" for package in ("numpy", "scipy", "torch") for name in (
            "svd", "svdvals", "eig", "eigh", "eigvals", "eigvalsh", "inv", "pinv", "solve", "lstsq",
            "qr", "cholesky", "det", "slogdet", "matrix_rank", "expm", "sqrtm", "svds", "eigsh"))),
     "svd, eigh, inv and the like take many times as long as a product of the same matrices: do "
     "them less often, solve in place of inv, and take a few steps of a power iteration where the "
     "largest values are enough"),
    ("attention", ("torch._C._nn.scaled_dot_product_attention",
                   "torch.scaled_dot_product_attention"),
     "if the host works on it while the GPU waits, a library makes a plan for each new length: pad "
     "to few lengths, or torch.backends.cuda.enable_cudnn_sdp(False); half precision and is_causal "
     "in place of a mask let the fast kernels run; keep keys and values of earlier tokens"),
    ("tensors moved or converted", ("torch._C.TensorBase.to", "torch._C.TensorBase.cpu",
                                    "torch._C.TensorBase.cuda", "torch._C.TensorBase.numpy",
                                    "torch._C.TensorBase.float", "torch._C.TensorBase.half",
                                    "torch._C.TensorBase.double", "torch._C.TensorBase.bfloat16",
                                    "torch._C.TensorBase.contiguous", "torch._C.TensorBase.type",
                                    "torch._C.TensorBase.pin_memory"),
     "convert or move once what is used again, many small tensors as one, and keep results where "
     "they are until they are needed"),
    ("joining arrays", ("numpy.append", "numpy.concatenate", "numpy.vstack", "numpy.hstack",
                        "numpy.stack", "numpy.column_stack", "numpy.insert", "numpy.delete",
                        "torch.cat", "torch.stack", "torch._C._VariableFunctionsClass.cat",
                        "torch._C._VariableFunctionsClass.concat",
                        "torch._C._VariableFunctionsClass.stack",
                        "torch._C._VariableFunctionsClass.vstack",
                        "torch._C._VariableFunctionsClass.hstack"),
     "if it grows by a piece at a time, all of it is copied each time: keep the pieces in a list "
     "and join them once, or make room first (empty) and write into it"),
    ("arrays from Python lists", ("numpy.array", "numpy.asarray", "numpy.fromiter",
                                  "torch._C._VariableFunctionsClass.tensor", "torch.tensor",
                                  "torch._C._VariableFunctionsClass.as_tensor",
                                  "numpy.core.multiarray.array", "numpy._core.multiarray.array"),
     "lists are read number by number: keep the data in arrays (numpy.stack, torch.from_numpy), "
     "convert it once and not for each batch"),
    ("numeric work", ("torch._C.TensorBase.__mul__", "* (torch", "*= (torch", "+ (torch",
                      "+= (torch", "- (torch", "-= (torch", "/ (torch", "/= (torch", "@ (torch"),
     "each operator makes a new tensor: change it in place (mul_, add_, lerp_, addcmul_), or all "
     "of a list with one call (torch._foreach_mul_), under no_grad where nothing is trained; make "
     "what does not change once"),
    ("numeric work", ("numpy.where", "numpy.unique", "numpy.isin", "numpy.in1d", "numpy.nonzero",
                      "numpy.searchsorted", "= (numpy", "== (numpy", "> (numpy", "< (numpy"),
     "if all of an array is looked through for each key, sort or group it once (numpy.unique with "
     "return_inverse, bincount, argsort and split, pandas.groupby)"),
    ("a Python function for each element", ("numpy.vectorize", "numpy.apply_along_axis",
                                            "numpy.frompyfunc", "numpy.piecewise"),
     "write it with operations on whole arrays (numpy.where, masks), or compile it (numba)"),
    ("numeric work", ("numpy", "scipy", "jax", "tensorflow", "cupy", "+ (numpy", "+= (numpy",
                      "- (numpy", "-= (numpy", "* (numpy", "*= (numpy", "/ (numpy", "/= (numpy",
                      "@ (numpy", "torch._VF"),
     "compute less, or less exactly: take out of the loop what does not change, reuse arrays "
     "(out=, +=) where large ones are made each time, float32 in place of float64, one large "
     "operation in place of many small ones, sparse matrices for mostly zeros"),
    ("the optimizer", ("torch.Optimizer", "torch.Adam", "torch.AdamW", "torch.SGD",
                       "torch.optim"),
     "use fused=True or foreach=True, and fewer, larger parameters"),
    ("the backward pass", ("torch.Tensor.backward", "torch.backward", "torch.grad",
                           "torch.autograd", "accelerate.Accelerator.backward"),
     "it costs about twice the forward pass: freeze what need not be trained, detach what needs no "
     "gradient, keep no graph of earlier steps, use mixed precision",
     "a thread of PyTorch's own runs it, and waits for a GPU that is still busy, or for the other "
     "ranks, as all gradients are added up: then see what the slowest rank does. It costs about "
     "twice the forward pass: freeze what need not be trained, detach what needs no gradient, use "
     "mixed precision; `sonde modules` tells which modules take the time"),
    ("the model", ("torch.Module.__call__", "torch.Module._wrapped_call_impl",
                   "torch.Module._call_impl"),
     "that is the model's own work: `sonde modules` tells its parts apart; larger batches, "
     "torch.compile, mixed precision, no_grad where nothing is trained"),
    ("loading data", ("torch.DataLoader", "torch._BaseDataLoaderIter",
                      "torch._SingleProcessDataLoaderIter", "torch._MultiProcessingDataLoaderIter",
                      "torch.default_collate", "torch.default_convert"),
     "let workers load (num_workers, persistent_workers), do in advance what is the same in each "
     "epoch, and load less"),
    ("numeric work", ("operators of arrays",),
     "each operator goes through the whole array and makes a new one: where that is done for each "
     "key (`values[ids == key]`), sort or group once (bincount, numpy.unique with return_inverse, "
     "argsort and split); of large arrays, write into one that is there (out=, +=, copyto; add_, "
     "torch.add with out=), or have the whole expression compiled (numexpr, numba, torch.compile)"),
    ("numeric work", ("torch", "torchvision.transforms", "torchmetrics", "transformers", "einops",
                      "lightning", "timm"),
     "many small operations are slow: do one on the whole batch in place of one for each sample "
     "or parameter (torch._foreach, stack first), make constants such as masks once, no_grad where "
     "nothing is trained, float32 or less"),
    ("training a model", ("sklearn", "xgboost", "lightgbm", "catboost", "statsmodels"),
     "fit and predict on many rows at a time, not one by one; n_jobs for processors that are free; "
     "keep what was fitted"),
    ("language", ("nltk", "spacy", "tokenizers", "sentencepiece", "tiktoken", "gensim",
                  "transformers.PreTrainedTokenizerBase", "transformers.PreTrainedTokenizer",
                  "transformers.PreTrainedTokenizerFast", "transformers.BatchEncoding",
                  "transformers.TokenizersBackend", "transformers.PythonBackend"),
     "keep the tokens of texts that recur, as those of a dataset do in each epoch: make them once, "
     "in advance; give it many texts at a time (nlp.pipe, a batch), load models once, and switch "
     "off parts that are not used"),
    ("graphs", ("networkx", "igraph"),
     "networkx is Python: rustworkx, igraph or scipy.sparse.csgraph are many times faster; ask "
     "once for all pairs or from one source, and not for each pair"),
    ("tasks of Dask", ("dask.Delayed", "dask.DelayedLeaf", "dask.delayed", "dask.DaskMethodsMixin",
                       "dask.compute", "dask.persist", "distributed"),
     "each task has its price, in the scheduler as well: make fewer and larger ones (larger "
     "chunks, batches in place of single items), and call compute once for all of them",
     "it waits for its tasks: the lines of the workers say what those do. If several results are "
     "made of the same tasks, ask for all of them with one `dask.compute(a, b, …)`, or keep what "
     "they share (persist): each compute does all of it again"),
    ("data frames", ("pandas", "polars", "dask", "geopandas", "vaex", "modin"),
     "work on whole columns: groupby, merge or map in place of a filter, loc or apply for each key "
     "or row; set_index (or a dictionary) for look-ups; collect pieces in a list and concat once; "
     "fewer columns, categories for texts that recur"),
    ("images and sound", ("PIL", "cv2", "imageio", "skimage", "librosa", "torchvision",
                          "torchaudio", "soundfile", "pydub", "av", "ffmpeg"),
     "decode and resize once and keep the small ones, decode at the size that is needed (draft), "
     "in several processes"),
    ("foreign functions", ("ctypes", "cffi"),
     "each call has its price: hand over many items with one call"),
)  # fmt: skip
