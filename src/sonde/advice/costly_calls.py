"""Library calls that are known to be costly, how they are seen, and what people do instead."""

from __future__ import annotations

from typing import NamedTuple

SHORT, LONG = "short", "long"
WORKING, WAITING = "working", "waiting"


class CostlyCall(NamedTuple):
    """One way to lose time. It is seen by Python frames of a library or by C functions, never by
    the text of a line."""

    name: str
    title: str  # the cause, as a finding says it
    instead: str  # what people do
    frames: tuple[str, ...] = ()  # `path:function`; a part of the path, the end of the name
    # (without a path, a method of a class of the program's own)
    calls: tuple[str, ...] = ()  # C functions, or a class or module of them with a dot behind it
    share_pct: float = 25.0  # of a thread's time from which it is worth a word
    is_avoidable: bool = True  # if not, it may be what the program is for: it is only mentioned
    is_through: bool = False  # what the library calls back counts, too
    stretch: str = ""  # SHORT: only if many calls make up the time; LONG: only if single calls last
    is_per_request: bool = False  # natural where a framework calls the program: only mentioned
    state: str = ""  # WORKING or WAITING, if only that time counts


CALLS = (
    CostlyCall(
        "backtracking",
        "A regular expression takes much of the time, in single calls that last long",
        "such a call tries the same text in countless ways: leave no repetition inside a "
        "repetition (`(a+)+`, `(.*,)*`), make the parts exclude each other (`[^,]*` instead of "
        "`.*`), from Python 3.11 on use atomic groups and possessive repetitions (`(?>…)`, `a++`), "
        "test the length of the input first, or use the package google-re2",
        ("/re/__init__.py:", "/lib/python3.10/re.py:"), ("re.Pattern.",), 30, stretch=LONG,
    ),
    CostlyCall(
        "pattern_compiled", "Regular expressions are compiled again and again",
        "compile each pattern once, outside of the loop; Python remembers only the last 512 "
        "patterns, so join many alternatives into one pattern, or keep them in a dictionary",
        ("/re/_compiler.py", "/re/_parser.py", "/sre_compile.py", "/sre_parse.py"), (), 15,
    ),
    CostlyCall(
        "sql_per_row", "One SQL statement after the other takes much of the time",
        "ask for all rows in one statement (`WHERE id IN (…)`, a JOIN), write them with "
        "executemany in one transaction, in an ORM with select_related, prefetch_related, "
        "joinedload or bulk_create, and give the column that is searched an index",
        ("/sqlalchemy/", "/django/db/", "/psycopg/", "/pymysql/", "/MySQLdb/", "/peewee.py",
         "/pymongo/", "/redis/"),
        ("sqlite3.Cursor.execute", "sqlite3.Cursor.fetchone", "sqlite3.Connection.execute",
         "psycopg2.extensions.cursor.", "_mysql."),
        30, stretch=SHORT, is_per_request=True,
    ),
    CostlyCall(
        "rows_fetched", "Finding and reading the rows of SQL statements takes much of the time",
        "give the columns that are searched and joined an index (EXPLAIN QUERY PLAN says which "
        "tables are read whole), ask only for the rows and columns that are used, and let the "
        "database add up",
        (), ("sqlite3.Cursor.fetchall", "sqlite3.Cursor.fetchmany"), 35, is_avoidable=False,
    ),
    CostlyCall(
        "commit_per_row", "Commits to a database, one after the other, take much of the time",
        "commit once after many rows; each commit waits until the disk has the data",
        ("/sqlalchemy/orm/session.py:commit",),
        ("sqlite3.Connection.commit", "psycopg2.extensions.connection.commit"), 20,
        stretch=SHORT, is_per_request=True,
    ),
    CostlyCall(
        "list_search", "Searching in a list takes much of the time",
        "keep a set, or a dictionary by that key, beside the list: `in`, index, count and remove "
        "look at one element after the other",
        (), ("list.__contains__", "list.index", "list.remove", "list.count",
             "collections.deque.__contains__", "dict_values.__contains__"), 35,
    ),
    CostlyCall(
        "list_shift", "Inserting or removing at the front of a list takes much of the time",
        "use collections.deque (appendleft, popleft), or add at the end and reverse once: each "
        "time, all the other elements are moved", (), ("list.insert", "list.pop"), 30,
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
        "vectorize", "numpy.vectorize runs a Python function for each element",
        "write it with operations on whole arrays (numpy.where, masks), or compile it with numba",
        ("/numpy/lib/function_base.py:vectorize", "/numpy/lib/_function_base_impl.py:vectorize"),
        share_pct=30, is_through=True,
    ),
    CostlyCall(
        "polling",
        "A loop asks again and again whether something has happened, and burns a processor",
        "wait instead of asking: queue.get() with a timeout, Event.wait(), Future.result(), "
        "Process.join(), selectors; at least sleep between two questions",
        ("/threading.py:is_set", "/queue.py:get_nowait", "/queue.py:empty", "/queue.py:qsize",
         "/queue.py:put_nowait", "/concurrent/futures/_base.py:done", "/threading.py:is_alive",
         "/multiprocessing/process.py:is_alive", "/multiprocessing/queues.py:empty",
         "/multiprocessing/queues.py:get_nowait", "/multiprocessing/pool.py:ready",
         "/multiprocessing/connection.py:poll", "/subprocess.py:poll"),
        ("_queue.SimpleQueue.get_nowait", "_queue.SimpleQueue.empty", "_thread.lock.locked",
         "posix.waitpid"), 25,
        state=WORKING,
    ),
    CostlyCall(
        "tiny_sleeps", "A loop sleeps for no time at all, and burns a processor",
        "wait for what the loop asks about (an event, a queue, a condition), or sleep for "
        "milliseconds", (), ("time.sleep",), 15, state=WORKING,
    ),
    CostlyCall(
        "subprocess_per_item", "Starting one program after the other takes much of the time",
        "give one program all items (xargs, a list of files, its standard input), use a library "
        "instead of the program, or start several at once (a ThreadPoolExecutor around "
        "subprocess.run)",
        ("/subprocess.py:",), ("posix.system",), 40, stretch=SHORT, is_per_request=True,
    ),
    CostlyCall(
        "flush_per_line", "Flushing a file again and again takes much of the time",
        "let the file collect what is written (no flush, no `buffering=1`, no print(flush=True) "
        "for each line), and flush at the end or once a second",
        (), ("_io.TextIOWrapper.flush", "_io.BufferedWriter.flush"), 15,
    ),
    CostlyCall(
        "fsync", "The program waits for the disk after each piece (fsync)",
        "call fsync once for many pieces, or once when a file is complete",
        (), ("posix.fsync", "posix.fdatasync", "posix.sync"), 15, stretch=SHORT,
    ),
    CostlyCall(
        "logging", "Logging takes much of the time",
        "log less in the hot loop (every thousandth time, or sums), raise the level, pass "
        "arguments instead of formatted text, and hand records to a QueueHandler",
        ("/logging/__init__.py", "/logging/handlers.py", "/loguru/", "/structlog/"),
        share_pct=25, is_through=True,
    ),
    CostlyCall(
        "deepcopy", "Copying objects (copy.deepcopy) takes much of the time",
        "copy only what changes (copy.copy, dict(…), dataclasses.replace), or make what is shared "
        "immutable", ("/copy.py:deepcopy", "/dataclasses.py:_asdict_inner"), share_pct=20,
    ),
    CostlyCall(
        "date_parsing", "Parsing dates takes much of the time",
        "use datetime.fromisoformat for ISO dates, remember what was parsed (functools.lru_cache), "
        "or parse a whole column at once with pandas.to_datetime and a format",
        ("/_strptime.py", "/dateutil/parser/"), ("datetime.datetime.strptime",), 20,
    ),
    CostlyCall(
        "slow_yaml", "YAML is read by the slow parser, which is written in Python",
        "load with yaml.CSafeLoader, or store the data as JSON",
        ("/yaml/scanner.py", "/yaml/parser.py", "/yaml/reader.py"), share_pct=20,
    ),
    CostlyCall(
        "slow_csv", "pandas reads a file with its slow parser, which is written in Python",
        "use the default engine: one separator of one character, no skipfooter",
        ("/pandas/io/parsers/python_parser.py",), share_pct=25,
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
        "certificates", "Clients are made again and again, and each reads all certificates (TLS)",
        "make one client (requests.Session, httpx.Client, aiohttp.ClientSession, one "
        "ssl.SSLContext) and use it for all requests",
        ("/ssl.py:create_default_context", "/ssl.py:load_default_certs",
         "/httpx/_config.py:create_ssl_context", "/urllib3/util/ssl_.py:create_urllib3_context"),
        ("_ssl._SSLContext.load_verify_locations", "_ssl._SSLContext.set_default_verify_paths"), 20,
    ),
    CostlyCall(
        "connections", "Making new connections again and again takes much of the time",
        "keep one requests.Session (httpx.Client, a pool of database connections) for all of them",
        ("/urllib3/connection.py:_new_conn", "/urllib3/util/connection.py", "/ssl.py:do_handshake",
         "/socket.py:create_connection", "/httpcore/_backends/sync.py:connect_tcp",
         "/httpcore2/_backends/sync.py:connect_tcp"),
        ("sqlite3.connect", "_sqlite3.connect", "psycopg2._psycopg._connect"), 20, stretch=SHORT,
    ),
    CostlyCall(
        "unanswered", "The program waits for connections that nobody answers",
        "see whether the other side is there and lets this machine through (a firewall drops what "
        "it does not allow); give connect a short timeout, remember for a while that a host is "
        "away, and connect in a thread of its own",
        ("/socket.py:create_connection",), ("_socket.socket.connect",), 20, stretch=LONG,
        state=WAITING,
    ),
    CostlyCall(
        "name_lookup", "Looking up the addresses of hosts (DNS) takes much of the time",
        "keep connections open instead of opening one for each request, and see whether the name "
        "server answers slowly", ("/socket.py:getaddrinfo",),
        ("_socket.getaddrinfo", "_socket.gethostbyname"), 15,
    ),
    CostlyCall(
        "requests_in_turn", "The program waits for one network request after the other",
        "send several at once (a ThreadPoolExecutor, asyncio with httpx or aiohttp), or ask for "
        "more with each request",
        ("/requests/", "/urllib3/", "/http/client.py", "/urllib/request.py", "/httpx/",
         "/httpcore/", "/httpx2/", "/httpcore2/", "/botocore/"), share_pct=50, stretch=SHORT,
        is_per_request=True, state=WAITING,
    ),
    CostlyCall(
        "code_compiled", "Code or templates are compiled again and again",
        "compile once and keep the result; for templates, keep one Environment",
        ("/jinja2/lexer.py", "/jinja2/parser.py", "/jinja2/compiler.py"),
        ("builtins.compile", "builtins.eval", "builtins.exec"), 15, stretch=SHORT,
    ),
    CostlyCall(
        "stack_inspection",
        "Looking at its own stack (inspect, traceback) takes much of its time",
        "use sys._getframe(1) for the caller, or turn this off outside of debugging",
        ("/inspect.py:stack", "/inspect.py:getouterframes", "/inspect.py:getframeinfo",
         "/traceback.py:extract", "/traceback.py:_extract_from_extended_frame_gen"), share_pct=15,
    ),
    CostlyCall(
        "imports", "Imports inside of functions take much of the time",
        "import at the top of the file; an import that fails is tried again each time",
        ("<frozen importlib._bootstrap",), share_pct=20, is_avoidable=False,
    ),
    CostlyCall(
        "pool_pickling", "Moving arguments and results between processes takes much of the time",
        "send paths, numbers or small pieces instead of large objects; let workers load the data "
        "themselves or inherit it (an initializer, a global before the fork); use "
        "multiprocessing.shared_memory or a larger chunksize",
        ("/multiprocessing/connection.py:send", "/multiprocessing/connection.py:_send_bytes",
         "/multiprocessing/reduction.py:dumps", "/multiprocessing/connection.py:recv"),
        share_pct=30, stretch=SHORT,
    ),
    CostlyCall(
        "opening_files", "Opening and closing files takes much of the time",
        "open a file once and keep it open; put many small files into one",
        (), ("io.open", "_io.open", "posix.open", "posix.close", "_io.TextIOWrapper.close",
             "_io.BufferedWriter.close", "_io.TextIOWrapper.__exit__"), is_avoidable=False,
    ),
    CostlyCall(
        "whole_files", "Reading whole files takes much of the time",
        "if they are the same files again, read them once and keep what is needed, map them "
        "(numpy.load with mmap_mode, torch.load with mmap), or for the end of a file seek to "
        "where the last reading ended; if they are others each time, read ahead in a thread",
        ("/numpy/lib/npyio.py:load", "/numpy/lib/_npyio_impl.py:load",
         "/torch/serialization.py:load", "/pathlib.py:read_text", "/pathlib.py:read_bytes",
         "/pathlib/__init__.py:read_text", "/pathlib/__init__.py:read_bytes",
         "/pandas/io/parsers/readers.py:", "/pandas/io/parquet.py:read_parquet",
         "/pandas/io/pickle.py:read_pickle"),
        ("_io._IOBase.readlines", "_io.TextIOWrapper.read", "_io.BufferedReader.read",
         "_io.FileIO.readall", "_io.FileIO.read", "_pickle.load"), 30, is_avoidable=False,
    ),
    CostlyCall(
        "hashing", "Hashing data takes much of the time",
        "if it is the same data again, keep the digest (of a file: by its path, size and time of "
        "change); against accidents, not attacks, zlib.crc32 or xxhash is faster",
        ("/hashlib.py:file_digest",),
        ("_hashlib.", "_md5.", "_sha1.", "_sha2.", "_sha256.", "_sha512.", "_blake2.",
         "zlib.crc32"), 30, is_avoidable=False,
    ),
    CostlyCall(
        "file_questions", "Asking the file system what is there takes much of the time",
        "list a folder once (os.scandir) instead of asking about each file, and keep the answer",
        ("/glob.py", "/genericpath.py", "/fnmatch.py", "/pathlib.py:_select_from",
         "/pathlib.py:_iterate_directories"),
        ("posix.stat", "posix.lstat", "posix.listdir", "posix.scandir", "posix.access"),
        is_avoidable=False,
    ),
    CostlyCall(
        "archive_opened", "An archive is opened again and again",
        "open it once and keep it open: each time the list of all that is in it is read",
        ("/zipfile.py:ZipFile.__init__", "/zipfile/__init__.py:ZipFile.__init__",
         "/tarfile.py:TarFile.open", "/h5py/_hl/files.py:File.__init__"), share_pct=25,
        stretch=SHORT,
    ),
    CostlyCall(
        "compression", "Compressing takes much of the time",
        "use a lower level (gzip's is 9), or zstandard",
        ("/gzip.py", "/bz2.py", "/lzma.py"),
        ("zlib.compress", "zlib.Compress.", "_bz2.", "_lzma."), 55, is_avoidable=False,
    ),
    CostlyCall(
        "decimals", "Decimal and Fraction arithmetic takes much of the time",
        "count in whole numbers of the smallest unit, or use floats where they are exact enough",
        ("/fractions.py", "/_pydecimal.py", "/statistics.py"), ("decimal.Decimal",), 40,
        is_avoidable=False,
    ),
    CostlyCall(
        "uuids", "Making UUIDs takes much of the time",
        "number the items with a counter, or make one random prefix and count behind it",
        ("/uuid.py",), (), 30, is_avoidable=False,
    ),
    CostlyCall(
        "json", "JSON takes much of the time",
        "if it is the same text or file again, parse it once and keep the result; use orjson, pass "
        "objects on instead of text, or store the data in a binary form such as Parquet",
        ("/json/__init__.py", "/json/encoder.py", "/json/decoder.py"), (), 40, is_avoidable=False,
    ),
    CostlyCall(
        "pickling", "Pickling takes much of the time",
        "keep large data in arrays (numpy.save), or pass less of it",
        ("/pickle.py",), ("_pickle.",), 40, is_avoidable=False,
    ),
)  # fmt: skip
