"""Costly ways to work on data in memory: text, lists, arrays, data frames, objects of one's own."""

from __future__ import annotations

from sonde.advice.costly_calls import LONG, SHORT, CostlyCall

WAYS = (
    CostlyCall(
        "backtracking",
        "A regular expression takes much of the time, for long at one line",
        "time one call: if it lasts long, it tries the same text in countless ways. Leave no "
        "repetition inside a repetition (`(a+)+`, `(.*,)*`), make the parts exclude each other "
        "(`[^,]*` instead of `.*`), from Python 3.11 on use atomic groups and possessive "
        "repetitions (`(?>…)`, `a++`), test the length of the input first, or use the package "
        "google-re2",
        ("/re/__init__.py:", "/lib/python3.10/re.py:"), ("re.Pattern.",), 30, is_avoidable=False,
        sure_pct=30, sure_calls=(".match", ".fullmatch"),  # others may go through a long text
        stretch=LONG,  # or one line matches many short texts in a row: such samples look the same
    ),
    CostlyCall(
        "patterns", "Regular expressions take much of the time",
        "if single matches take long, leave no repetition inside a repetition (`(a+)+`) and make "
        "the parts exclude each other; else test with `in` or startswith first, join many patterns "
        "into one, or split the text with str.split or str.partition",
        ("/re/__init__.py:", "/lib/python3.10/re.py:"), ("re.Pattern.",), 60, is_avoidable=False,
    ),
    CostlyCall(
        "pattern_compiled", "Regular expressions are compiled again and again",
        "compile each pattern once, outside of the loop; Python remembers only the last 512 "
        "patterns, so join many alternatives into one pattern, or keep them in a dictionary",
        ("/re/_compiler.py", "/re/_parser.py", "/sre_compile.py", "/sre_parse.py"), (), 15,
    ),
    CostlyCall(
        "list_search", "Searching in a list takes much of the time",
        "keep a set, or a dictionary by that key, beside the list: `in`, index, count and remove "
        "look at one element after the other",
        (), ("list.__contains__", "list.index", "list.remove", "list.count",
             "collections.deque.__contains__", "dict_values.__contains__"), 35,
    ),
    CostlyCall(
        "deque_reach", "Reaching into the middle of a deque takes much of the time",
        "a deque is a chain, and each time it is walked along: use a list where elements are asked "
        "for by their number (a ring: write at `i % size`), as random.sample and random.choice do",
        (), ("collections.deque.__getitem__", "collections.deque.__setitem__",
             "collections.deque.index", "collections.deque.insert", "collections.deque.remove"), 25,
        via=("random.py",),
    ),
    CostlyCall(
        "sets_made", "Making sets out of other data takes much of the time",
        "if it is the same data again (`x in set(all)` makes the set for each x), make the set "
        "once, outside of the loop, and change it when the data changes",
        (), ("builtins.set", "builtins.frozenset"), 30, is_avoidable=False,
    ),
    CostlyCall(
        "list_shift", "Inserting or removing at the front of a list takes much of the time",
        "use collections.deque (appendleft, popleft), or add at the end and reverse once: each "
        "time, all the other elements are moved",
        (), ("list.insert", "list.pop", "list.__delitem__"), 30,
    ),
    CostlyCall(
        "copied_to_add", "A long text or list is copied for each piece that is added to it (+)",
        "collect the pieces in a list and join them once at the end (`''.join(pieces)`), write to "
        "io.StringIO, use a bytearray for bytes, and append or extend for lists",
        (), ("str.__add__", "str.__iadd__", "bytes.__add__", "bytes.__iadd__", "list.__add__",
             "tuple.__add__", "tuple.__iadd__"), 25,
    ),
    CostlyCall(
        "copied_to_merge",
        "Copying dictionaries or lists into new ones ({**a, …}, [*a, …]) takes much of the time",
        "where one grows by an item at a time, all of it is copied each time: change it in place "
        "(`index[key] = value`, update, append, extend), or make it once at the end; to look in "
        "several without a copy, use collections.ChainMap",
        (), ("{**}", "[*]", "dict.copy", "list.copy"), 30, is_avoidable=False, sure_pct=50,
    ),
    CostlyCall(
        "copied_to_cut", "Slices copy much of a long text or list again and again",
        "keep the list and count up a position in it, or use an iterator or collections.deque "
        "(popleft); of bytes, cut a memoryview",
        (), ("str.__getitem__", "bytes.__getitem__", "list.__getitem__", "tuple.__getitem__"), 30,
        is_avoidable=False, sure_pct=50,
    ),
    CostlyCall(
        "elements", "Arrays are worked on element by element, in Python",
        "write it with operations on whole arrays (slices such as `a[1:] - a[:-1]`, numpy.where, "
        "masks, cumsum, convolve; of tensors triu, bincount, gather, index_add), turn the array "
        "into a list first (`tolist`), or compile the loop with numba",
        (), ("numpy.ndarray.__getitem__", "numpy.ndarray.__setitem__", "numpy.float64.",
             "numpy.float32.", "numpy.int64.", "numpy.int32.", "numpy.uint8.",
             "numpy.bool.", "torch._C.TensorBase.item", "torch._C.TensorBase.__getitem__",
             "torch._C.TensorBase.__setitem__"), 25, is_avoidable=False, sure_pct=50,
        via=("random.py",),  # shuffle
        # `batch[i] = image` copies much at a time, as it should
        sure_calls=(".__getitem__", ".item", ".__add__", ".__sub__", ".__mul__", ".__truediv__"),
    ),
    CostlyCall(
        "exceptions", "Raising and catching exceptions takes much of the time",
        "where the exception is the usual case, ask first (`in`, dict.get, str.isdigit, a default "
        "or None as the result) instead of raising; raise from fewer calls deep",
        (), ("raise",), 20, is_avoidable=False, sure_pct=30,
    ),
    CostlyCall(
        "rowwise", "A data frame is worked on row by row, in Python",
        "compute with whole columns (`frame.a * frame.b`, numpy.where, Series.map of a dictionary, "
        "merge, groupby with a built-in function); where a loop is needed, loop over itertuples or "
        "over lists",
        ("/pandas/core/apply.py:FrameColumnApply.series_generator",
         "/pandas/core/frame.py:iterrows", "/pandas/core/indexing.py:",
         "/pandas/core/frame.py:_set_value"), share_pct=20,
    ),
    CostlyCall(
        "group_apply", "A function in Python is called for each group, or each value, of a table",
        "use the functions that pandas has for all groups at once (agg with names such as 'sum', "
        "'max' and 'size', transform, cumsum, rank), compute columns before grouping, and replace "
        "values with merge or map of a dictionary",
        ("/pandas/core/groupby/groupby.py:apply", "/pandas/core/groupby/generic.py:apply",
         "/pandas/core/groupby/generic.py:filter", "/pandas/core/series.py:apply"),
        share_pct=40, is_avoidable=False, is_through=True,
    ),
    CostlyCall(
        "frame_filtered", "Rows of a data frame are picked out again and again, by conditions",
        "where this is done for each key, group once (`for key, rows in frame.groupby(…)`, agg), "
        "join with merge, or set_index and look up; each condition goes through all rows",
        ("/pandas/core/frame.py:_getitem_bool_array", "/pandas/core/frame.py:query",
         "/pandas/core/series.py:_get_rows_with_mask", "/pandas/core/arraylike.py:__eq__",
         "/pandas/core/algorithms.py:isin"), share_pct=30, is_avoidable=False, sure_pct=50,
        stretch=SHORT,
    ),
    CostlyCall(
        "frame_grown", "A data frame or an array is copied for each piece that is added to it",
        "collect the pieces in a list, and call concat (numpy.concatenate) once at the end",
        ("/pandas/core/reshape/concat.py", "/pandas/core/frame.py:append",
         "/numpy/lib/function_base.py:append", "/numpy/lib/_function_base_impl.py:append"),
        share_pct=25, stretch=SHORT,
    ),
    CostlyCall(
        "arrays_joined", "Joining arrays (stack, concatenate, cat) takes much of the time",
        "if an array grows by a piece at a time, all of it is copied each time: keep the pieces in "
        "a list and join them once at the end, or make room for all of them first (numpy.empty, "
        "torch.empty) and write into it",
        ("/numpy/core/shape_base.py:", "/numpy/_core/shape_base.py:",
         "/numpy/lib/shape_base.py:column_stack", "/numpy/lib/_shape_base_impl.py:column_stack"),
        ("torch._C._VariableFunctionsClass.cat", "torch._C._VariableFunctionsClass.concat",
         "torch._C._VariableFunctionsClass.vstack", "torch._C._VariableFunctionsClass.hstack"),
        40, is_avoidable=False,
    ),
    CostlyCall(
        "sorting", "Sorting takes much of the time",
        "if it is the same list again after each change, keep it in order instead "
        "(bisect.insort, heapq, sortedcontainers), sort once after all changes, or ask only for "
        "what is needed (min, max, heapq.nlargest)",
        (), ("list.sort", "builtins.sorted"), 35, is_avoidable=False,
    ),
    CostlyCall(
        "smallest", "Looking for the smallest or largest of many takes much of the time",
        "if it is asked again after each change, keep a heap (heapq) or a sorted list (bisect), or "
        "remember the answer",
        (), ("builtins.min", "builtins.max"), 50, is_avoidable=False,
    ),
    CostlyCall(
        "adding_up", "Adding up takes much of the time, in single calls of sum that last long",
        "of lists or tuples, sum copies all of what it has for each one: use "
        "itertools.chain.from_iterable; of numbers of an array, use the array's own sum; of the "
        "same numbers again, keep a running total",
        (), ("builtins.sum",), 40, is_avoidable=False, stretch=LONG,
    ),
    CostlyCall(
        "vectorize", "numpy.vectorize runs a Python function for each element",
        "write it with operations on whole arrays (numpy.where, masks), or compile it with numba",
        ("/numpy/lib/function_base.py:vectorize.__call__",
         "/numpy/lib/_function_base_impl.py:vectorize.__call__"),
        share_pct=30, is_through=True,
    ),
    CostlyCall(
        "deepcopy", "Copying objects (copy.deepcopy) takes much of the time",
        "copy only what changes (copy.copy, dict(…), dataclasses.replace), or make what is shared "
        "immutable", ("/copy.py:deepcopy",), share_pct=20,
    ),
    CostlyCall(
        "asdict", "Making dictionaries of dataclasses (dataclasses.asdict) takes much of the time",
        "asdict copies all that lies below an object, each list and each dictionary: name the "
        "fields (`{'name': self.name, …}`), use vars(self) where no field is a dataclass, or a "
        "serializer that reads dataclasses itself (orjson, msgspec)",
        ("/dataclasses.py:asdict", "/dataclasses.py:astuple", "/attr/_funcs.py:asdict"),
        share_pct=20,
    ),
    CostlyCall(
        "own_equality",
        "Comparing and hashing objects, by methods in Python, takes much of the time",
        "these methods run at each look-up in a set or a dictionary, and each `==` and `in`: "
        "compare and hash a few simple fields, as a tuple, keep the hash in an object that cannot "
        "change, or use a short key (an id, a tuple) instead of the object",
        (":__hash__", ":__eq__", ":__ne__"), (), 35, is_through=True,
    ),
    CostlyCall(
        "own_order", "Ordering objects, by methods in Python, takes much of the time",
        "sort with `key=` (a field, a tuple; operator.attrgetter), which is asked once for each "
        "object and not for each comparison, and put tuples into a heap",
        (":__lt__", ":__gt__", ":__le__", ":__ge__"), (), 35, is_through=True,
    ),
    CostlyCall(
        "own_text", "Making text of objects (their __repr__, __str__) takes much of the time",
        "make no text that nobody reads: pass the object to the log as an argument "
        '(`log.debug("%r", it)`), so that it becomes text only if the line is written, or ask '
        "`log.isEnabledFor` first; use a simple field as a key",
        (":__repr__", ":__str__", ":__format__"), (), 25, is_through=True, is_avoidable=False,
    ),
    CostlyCall(
        "laid_out", "Laying objects out as text (pprint, textwrap) takes much of the time",
        "make no text that nobody reads: ask `log.isEnabledFor` first, or pass the object as an "
        "argument of the log; write less of it, and for machines as JSON",
        ("/pprint.py:", "/textwrap.py:"), (), 30, is_avoidable=False,
    ),
    CostlyCall(
        "texts_compared", "Comparing texts for how alike they are takes much of the time",
        "compare equal ones first (a dictionary), then only those that share a beginning, a length "
        "or some pieces of three letters (an index by these), and with rapidfuzz (process.cdist, "
        "extractOne), which is many times faster than difflib",
        ("/difflib.py:", "/fuzzywuzzy/", "/jellyfish/"), (), 30, is_avoidable=False,
    ),
    CostlyCall(
        "decompositions",
        "Decompositions and inverses of matrices (svd, eigh, inv) take much of the time",
        "they take many times as long as a product of the same matrices: do them less often, solve "
        "in place of inv, take eigh or cholesky where a matrix is symmetric, and a few steps of a "
        "power iteration (svd_lowrank, scipy.sparse.linalg.svds) where the largest values are "
        "enough", ("/numpy/linalg/", "/scipy/linalg/"),
        ("torch._C._linalg.", "torch._C._VariableFunctionsClass.svd",
         "torch._C._VariableFunctionsClass.pinverse"), 30, is_avoidable=False,
    ),
    CostlyCall(
        "distributions", "Making and asking objects of torch.distributions takes much of the time",
        "each of them checks its arguments, at every log_prob, too: "
        "`Distribution.set_default_validate_args(False)` leaves that out; make one for a whole "
        "batch, and where each is of one value, do without (log_softmax, torch.multinomial, randn)",
        ("/torch/distributions/",), (), 25, is_avoidable=False,
    ),
    CostlyCall(
        "code_compiled", "Code or templates are compiled again and again",
        "compile once and keep the result; for templates, keep one Environment",
        ("/jinja2/lexer.py", "/jinja2/parser.py", "/jinja2/compiler.py",
         "/jinja2/environment.py:compile", "/jinja2/environment.py:_compile"),
        ("builtins.compile", "builtins.eval", "builtins.exec"), 15, stretch=SHORT,
    ),
    CostlyCall(
        "classes_built", "Classes or validators are built again and again",
        "build each once, at the top of a module, and keep it: pydantic's TypeAdapter and "
        "create_model, a namedtuple or a dataclass that a function defines, a validator of "
        "jsonschema",
        ("/pydantic/type_adapter.py:__init__", "/pydantic/_internal/_model_construction.py:",
         "/pydantic/main.py:create_model", "/dataclasses.py:_process_class",
         "/dataclasses.py:make_dataclass", "/collections/__init__.py:namedtuple",
         "/jsonschema/validators.py:check_schema"), share_pct=20, stretch=SHORT,
    ),
    CostlyCall(
        "models_checked", "Checking and copying models (pydantic) takes much of the time",
        "check data once, where it comes in; inside, change a copy (`model_copy(update=…)`), use "
        "model_construct for data that is known to be right, or plain dataclasses; dump a model "
        "only where it leaves the program",
        ("/pydantic/main.py:__init__", "/pydantic/main.py:model_validate",
         "/pydantic/main.py:model_dump", "/pydantic/main.py:model_dump_json",
         "/pydantic/main.py:parse_obj", "/pydantic/main.py:dict"), (), 40, is_avoidable=False,
    ),
    CostlyCall(
        "one_hot", "A table of zeros and ones is made to look something up (one_hot)",
        "a one-hot vector times a matrix is one row of the matrix: nn.Embedding, F.embedding or an "
        "index (`weight[ids]`); cross_entropy takes the numbers of classes as they are", (),
        ("torch._C._nn.one_hot",), 15, is_avoidable=False, sure_pct=30,
    ),
    CostlyCall(
        "stack_inspection",
        "Looking at its own stack (inspect, traceback) takes much of its time",
        "format no traceback for errors that are usual, use sys._getframe(1) for the caller, or "
        "turn this off outside of debugging",
        ("/inspect.py:stack", "/inspect.py:getouterframes", "/inspect.py:getframeinfo",
         "/traceback.py:extract", "/traceback.py:_extract_from_extended_frame_gen"), share_pct=15,
    ),
    CostlyCall(
        "text_position", "Asking where a text file stands (tell) takes much of the time",
        "open the file in binary mode and add up the lengths of its lines: in text mode each "
        "tell() has to decode anew what lies before it",
        (), ("_io.TextIOWrapper.tell",), 15,
    ),
    CostlyCall(
        "answers_encoded", "FastAPI goes through each value of its answers in Python",
        "return a Response of your own for large answers (`Response(json.dumps(rows), "
        "media_type='application/json')`, ORJSONResponse), or declare the type of the answer "
        "(`-> list[Item]`), which newer versions write in one go; send pages of a list and not "
        "all of it. `sonde requests` tells which routes take the time",
        ("/fastapi/encoders.py:jsonable_encoder", "/fastapi/routing.py:serialize_response"),
        share_pct=20,
    ),
    CostlyCall(
        "protocols_asked", "Asking whether objects fit a Protocol takes much of the time",
        "isinstance of a typing.Protocol looks for each of its methods and attributes, each time: "
        "ask for a class (`isinstance(it, Order)`), keep the answer by type (a dictionary by "
        "`type(it)`, functools.singledispatch), or give the kinds of objects a field that says it",
        ("/typing.py:_ProtocolMeta.__instancecheck__",), (), 20,
    ),
    CostlyCall(
        "drawings", "Drawing charts (matplotlib) takes much of the time",
        "draw less often, at the end, or in another process from numbers that are kept; draw fewer "
        "points, keep one figure and change its data (set_data), and close figures that are done",
        # Not what importing it takes.
        ("/matplotlib/figure.py:savefig", "/matplotlib/figure.py:draw",
         "/matplotlib/pyplot.py:savefig", "/matplotlib/pyplot.py:subplots",
         "/matplotlib/pyplot.py:figure", "/matplotlib/figure.py:subplots",
         "/matplotlib/backends/backend_agg.py:draw"), (), 25, is_avoidable=False,
    ),
    CostlyCall(
        "networks_searched", "Comparing addresses with single networks takes much of the time",
        "an address is in a network if its first bits are the network's: keep the networks in a "
        "set or a dictionary by these bits as a number, for each length of prefix, or in sorted "
        "ranges (bisect), or use a radix tree (pytricia); keep the answer for addresses that recur",
        ("/ipaddress.py:_BaseNetwork.__contains__",), (), 25,
    ),
    CostlyCall(
        "signatures", "Signatures and types of functions are looked up again and again",
        "ask once for each function, where it is registered or decorated, and keep the answer "
        "(functools.lru_cache, a dictionary by the function)",
        ("/inspect.py:signature", "/inspect.py:getfullargspec", "/inspect.py:getsource",
         "/inspect.py:getmembers", "/inspect.py:getdoc", "/typing.py:get_type_hints"),
        share_pct=20, stretch=SHORT,
    ),
    CostlyCall(
        "packages_read", "The metadata of installed packages is read again and again",
        "ask once and keep the answer (functools.lru_cache): importlib.metadata and pkgutil go "
        "through the folders of all packages at each call of entry_points, version and the like",
        ("/importlib/metadata/", "/importlib_metadata/", "/pkgutil.py:", "/pkg_resources/"),
        share_pct=20, stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "imports", "Imports inside of functions take much of the time",
        "import at the top of the file; an import that fails is tried again each time",
        ("<frozen importlib._bootstrap",), share_pct=20, is_avoidable=False, sure_pct=30,
        is_once=True,
    ),
    CostlyCall(
        "decimals", "Decimal and Fraction arithmetic takes much of the time",
        "count in whole numbers of the smallest unit, or use floats where they are exact enough",
        ("/fractions.py", "/_pydecimal.py", "/statistics.py"), ("decimal.Decimal",), 40,
        is_avoidable=False,
    ),
)  # fmt: skip
