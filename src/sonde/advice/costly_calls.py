"""Library calls that are known to be costly, how they are seen, and what people do instead."""

from __future__ import annotations

from typing import NamedTuple

SHORT, LONG = "short", "long"
WORKING, WAITING = "working", "waiting"
ONLY, NEVER = "only", "never"


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
    sure_pct: float = 0.0  # unless it takes so much of the time: there is a better way then
    sure_calls: tuple[str, ...] = ()  # and ends with one of these, if any are given
    is_through: bool = False  # what the library calls back counts, too
    via: tuple[str, ...] = ()  # files of Python's own whose calls count as those of who asked them
    stretch: str = ""  # SHORT: only if many calls make up the time; LONG: only if single calls last
    is_per_request: bool = False  # natural where a framework calls the program: only mentioned
    state: str = ""  # WORKING or WAITING, if only that time counts
    asleep: str = ""  # ONLY, or NEVER: whether time counts in which the call itself sleeps
    cpu_pct: float = 0.0  # of a processor that it uses, at least: a share of little is nothing
    is_once: bool = False  # natural once, as at the end: what only one piece shows is mentioned
    once: tuple[str, str] | None = None  # and then said so: title, what people do


CALLS = (
    CostlyCall(
        "sql_per_row", "One SQL statement after the other takes much of the time",
        "where there are many of them, ask for all rows in one statement (`WHERE id IN (…)`, a "
        "JOIN), write them with executemany in one transaction, in an ORM with select_related, "
        "prefetch_related, joinedload or bulk_create; where each is slow, give the column that is "
        "searched an index (EXPLAIN says which tables are read whole)",
        # Not the making of objects from the rows of one statement.
        ("/sqlalchemy/engine/base.py", "/sqlalchemy/orm/strategies.py:_emit_lazyload",
         "/sqlalchemy/orm/strategies.py:_load_for_state", "/sqlalchemy/orm/session.py:get",
         "/sqlalchemy/orm/loading.py:load_on_pk_identity",
         "/django/db/backends/utils.py", "/django/db/models/sql/compiler.py:execute_sql",
         "/django/db/models/fields/related_descriptors.py:__get__",
         "/django/db/models/query.py:get", "/django/db/models/query.py:exists",
         "/django/db/models/query.py:get_or_create", "/django/db/models/query.py:count",
         "/django/db/models/base.py:save", "/peewee.py:execute_sql", "/peewee.py:execute",
         "/peewee.py:get", "/peewee.py:get_rel_instance", "/peewee.py:save", "/peewee.py:create",
         "/psycopg/", "/pymysql/", "/MySQLdb/", "/pymongo/", "/redis/"),
        ("psycopg2.extensions.cursor.", "_mysql."),
        30, stretch=SHORT, is_per_request=True, asleep=NEVER,
    ),
    CostlyCall(
        "sqlite_per_row", "One SQL statement after the other takes much of the time",
        "where there are many of them, ask for all rows in one statement (`WHERE id IN (…)`, a "
        "JOIN), and write them with executemany in one transaction; where each is slow, give the "
        "column that is searched an index (EXPLAIN QUERY PLAN says which tables are read whole)",
        # They are calls of a library, and no messages to a server: many of them may be well.
        (), ("sqlite3.Cursor.execute", "sqlite3.Cursor.fetchone", "sqlite3.Connection.execute"),
        30, is_avoidable=False, sure_pct=75, stretch=SHORT, is_per_request=True, asleep=NEVER,
    ),
    CostlyCall(
        "database_locked", "SQL statements wait for a database that another connection locks",
        "end transactions soon: ask other services, and compute, before BEGIN or after COMMIT, and "
        "commit after each piece of work; `PRAGMA journal_mode=WAL` lets others read while one "
        "writes; have one thread or process do all of the writing",
        ("/sqlalchemy/engine/base.py", "/django/db/backends/utils.py", "/peewee.py:execute_sql"),
        ("sqlite3.Cursor.execute", "sqlite3.Cursor.executemany", "sqlite3.Connection.execute",
         "sqlite3.Connection.executemany", "sqlite3.Connection.commit",
         "sqlite3.Connection.__exit__"), 15, asleep=ONLY,  # SQLite sleeps until it is free
    ),
    CostlyCall(
        "rows_fetched", "Finding and reading the rows of SQL statements takes much of the time",
        "give the columns that are searched and joined an index (EXPLAIN QUERY PLAN says which "
        "tables are read whole), ask only for the rows and columns that are used, and let the "
        "database add up",
        (), ("sqlite3.Cursor.fetchall", "sqlite3.Cursor.fetchmany"), 35, is_avoidable=False,
    ),
    CostlyCall(
        "objects_of_rows", "Making objects of the rows of a database (ORM) takes much of the time",
        "ask only for the columns that are used (select of columns, load_only, values_list, only), "
        "for pieces of what is large (yield_per, iterator), let the database add up, and insert "
        "many rows with one statement in place of objects",
        ("/sqlalchemy/orm/loading.py", "/django/db/models/base.py:from_db",
         "/django/db/models/query.py:ModelIterable.__iter__", "/peewee.py:process_row"), (), 40,
        is_avoidable=False,
    ),
    CostlyCall(
        "commit_per_row", "Commits to a database, one after the other, take much of the time",
        "commit once after many rows; each commit waits until the disk has the data",
        ("/sqlalchemy/orm/session.py:commit",),
        ("sqlite3.Connection.commit", "sqlite3.Connection.__exit__",
         "psycopg2.extensions.connection.commit"), 20,
        stretch=SHORT, is_per_request=True,
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
         "posix.waitpid", "time.time", "time.monotonic", "time.perf_counter", "while"), 25,
        state=WORKING,
    ),
    CostlyCall(
        "tiny_waits", "Waiting for other threads takes work: it ends and begins again all the time",
        "wait without a timeout, or with one of seconds, and have a message or an event end it "
        "(`queue.put(None)`, Event.set); where there is an item for each wait, hand over several "
        "at once",
        ("/threading.py:wait", "/threading.py:_wait_for_tstate_lock"), (), 25, is_avoidable=False,
        sure_pct=50, state=WORKING,
    ),
    CostlyCall(
        "tiny_sleeps", "A loop sleeps for no time at all, and keeps a processor awake",
        "wait for what the loop asks about (an event, a queue, a condition), or sleep for "
        "milliseconds", (), ("time.sleep",), 8, state=WORKING, cpu_pct=5,
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
        "log_rotated", "Log files are renamed again and again, to make room for a new one",
        "let each file become larger (`maxBytes` of a RotatingFileHandler), and keep fewer old "
        "ones (`backupCount`): at each roll-over all of them are renamed; or leave it to logrotate "
        "and a WatchedFileHandler",
        ("/logging/handlers.py:doRollover",), share_pct=15, is_once=True,
    ),
    CostlyCall(
        "woken_in_vain", "All threads that wait are woken again and again (notify_all)",
        "wake one for each item (`notify()`, or notify(n)), or use queue.Queue, which does: of "
        "all that notify_all wakes, one finds the item, and the others wait anew; start no more "
        "threads than there is work for",
        ("/threading.py:notify_all", "/threading.py:notifyAll"), share_pct=15,
        is_avoidable=False,
    ),
    CostlyCall(
        "asyncio_debug", "asyncio is in debug mode: it keeps a stack for each task and callback",
        "leave it out where the program is not being debugged: `asyncio.run(…, debug=True)`, "
        "`loop.set_debug(True)`, the variable PYTHONASYNCIODEBUG, `python -X dev`",
        ("/asyncio/format_helpers.py:extract_stack",), share_pct=10,
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
        "pool_pickling", "Moving arguments and results between processes takes much of the time",
        "send paths, numbers or small pieces instead of large objects; let workers load the data "
        "themselves or inherit it (an initializer, a global before the fork); use "
        "multiprocessing.shared_memory or a larger chunksize",
        ("/multiprocessing/connection.py:send", "/multiprocessing/connection.py:_send_bytes",
         "/multiprocessing/reduction.py:dumps", "/multiprocessing/connection.py:recv"),
        share_pct=30, stretch=SHORT,
    ),
    CostlyCall(
        "queue_items", "Handing single items from process to process takes much of the time",
        "put many items into the queue at once, as a list of some hundreds, and take them out as "
        "one; send arrays through shared memory (torch.multiprocessing, shared_memory)",
        ("/multiprocessing/queues.py:get", "/multiprocessing/queues.py:put"), share_pct=25,
        stretch=SHORT, state=WORKING,
    ),
    CostlyCall(
        "manager_objects",
        "Each access to an object of a multiprocessing.Manager asks another process",
        "work on a dictionary or list of one's own and hand it over once at the end (as the result "
        "of the task, or with update), use multiprocessing.Value or Array for numbers and "
        "multiprocessing.Queue for messages",
        ("/multiprocessing/managers.py:_callmethod",), share_pct=20, stretch=SHORT,
    ),
    CostlyCall(
        "threads_started", "Starting one thread after the other takes much of the time",
        "keep a few threads and hand them the work (concurrent.futures.ThreadPoolExecutor made "
        "once, a queue.Queue)",
        ("/threading.py:start",), ("_thread.start_new_thread", "_thread.start_joinable_thread"), 20,
        is_avoidable=False, sure_pct=40, stretch=SHORT,
    ),
    CostlyCall(
        "processes_started",
        "Processes are started and ended again and again (multiprocessing)",
        "make the pool once, before the loop, and use it for all of the work; end it at the end",
        ("/multiprocessing/pool.py:__init__", "/multiprocessing/pool.py:__exit__",
         "/multiprocessing/pool.py:terminate", "/multiprocessing/process.py:start",
         "/multiprocessing/process.py:join",
         "/multiprocessing/context.py:Pool", "/concurrent/futures/process.py:shutdown",
         "/concurrent/futures/process.py:_spawn_process"), share_pct=25, is_avoidable=False,
        sure_pct=40, stretch=SHORT, is_once=True, once=(
            "Starting and ending processes takes much of the time (multiprocessing)",
            "if a pool is made more than once, make it before the loop and use it for all of the "
            "work; if it is made once, start fewer processes, and before the program has much in "
            "memory, or do without a pool where there is little to do",
        ),
    ),
    CostlyCall(
        "saving", "Saving (torch.save and the like) takes much of the time",
        "save less often; copy the tensors to the CPU and write them in a thread or with "
        "torch.distributed.checkpoint's async_save",
        ("/torch/serialization.py:save", "/safetensors/torch.py:save_file",
         "/torch/distributed/checkpoint/state_dict_saver.py:save"), share_pct=20, is_once=True,
    ),
    CostlyCall(
        "unbuffered", "Reading without a buffer takes much of the time",
        "if each call reads little (a byte, a line, a header), each costs a call of the system: "
        "open files with their usual buffering, read lines from a socket with makefile('rb'), or "
        "read large pieces and cut them up",
        (), ("_io.FileIO.read", "_io.FileIO.readinto", "posix.read", "posix.pread",
             "_socket.socket.recv", "_socket.socket.recv_into"), 30, is_avoidable=False,
        state=WORKING,
    ),
    CostlyCall(
        "opening_files", "Opening and closing files takes much of the time",
        "open a file once and keep it open; put many small files into one",
        (), ("io.open", "_io.open", "posix.open", "posix.close", "_io.TextIOWrapper.close",
             "_io.BufferedWriter.close", "_io.TextIOWrapper.__exit__"), is_avoidable=False,
    ),
    CostlyCall(
        "temporary_files", "Making one temporary file after the other takes much of the time",
        "hand the data on as a value (bytes, a text, io.BytesIO) where the other side takes one, "
        "or use one file, or one temporary folder, for many pieces",
        ("/tempfile.py:",), (), 25, is_avoidable=False, sure_pct=40, stretch=SHORT,
    ),
    CostlyCall(
        "whole_files", "Reading whole files takes much of the time",
        "if they are the same files again, read them once and keep what is needed, map them "
        "(numpy.load with mmap_mode, torch.load with mmap), or for the end of a file seek to "
        "where the last reading ended; if they are others each time, read ahead in a thread",
        ("/numpy/lib/npyio.py:load", "/numpy/lib/_npyio_impl.py:load",
         "/numpy/lib/npyio.py:__getitem__", "/numpy/lib/_npyio_impl.py:__getitem__",
         "/pathlib.py:read_text", "/pathlib.py:read_bytes",
         "/pathlib/__init__.py:read_text", "/pathlib/__init__.py:read_bytes",
         "/pandas/io/parsers/readers.py:", "/pandas/io/parquet.py:read_parquet",
         "/pandas/io/pickle.py:read_pickle"),
        ("_io._IOBase.readlines", "_io.TextIOWrapper.read", "_io.BufferedReader.read",
         "_io.FileIO.readall", "_pickle.load"), 30, is_avoidable=False,
    ),
    CostlyCall(
        "models_made", "Building models, or loading them from files, takes much of the time",
        "if it is the same model again, make it once, at the start, and keep it (a dictionary by "
        "its name, functools.lru_cache); its first random values are drawn for nothing if they are "
        "loaded over: make it under `torch.device('meta')` and load_state_dict(…, assign=True)",
        ("/torch/nn/init.py:", "/torch/nn/modules/module.py:load_state_dict",
         "/torch/nn/modules/linear.py:__init__", "/torch/nn/modules/sparse.py:__init__",
         "/torch/nn/modules/conv.py:__init__", "/torch/nn/modules/rnn.py:__init__",
         "/torch/nn/modules/activation.py:__init__", "/torch/nn/modules/transformer.py:__init__",
         "/torch/nn/modules/normalization.py:__init__", "/torch/nn/modules/batchnorm.py:__init__",
         "/torch/serialization.py:load", "/torch/jit/_serialization.py:load",
         "/safetensors/torch.py:load_file", "/transformers/modeling_utils.py:from_pretrained",
         "/sentence_transformers/SentenceTransformer.py:__init__", "/joblib/numpy_pickle.py:load",
         "/onnxruntime/capi/onnxruntime_inference_collection.py:__init__"), (), 25,
        is_avoidable=False,
    ),
    CostlyCall(
        "passwords", "Checking passwords or deriving keys takes much of the time",
        "this is slow on purpose: check a password once, at the login, and then a session or a "
        "token; keep derived keys; in an event loop, do it in a thread (asyncio.to_thread)",
        ("/passlib/", "/argon2/"),
        ("_hashlib.pbkdf2_hmac", "_hashlib.scrypt", "bcrypt."), 20, is_avoidable=False,
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
        "list a folder once (os.scandir) instead of asking about each file, and keep the answer; "
        "resolve a path once (realpath asks about each of its folders), or normalise it with "
        "os.path.normpath, which asks nothing",
        ("/glob.py", "genericpath", "/fnmatch.py", "posixpath:realpath", "/pathlib:resolve",
         "/pathlib:stat", "/pathlib:exists", "/pathlib:is_file", "/pathlib:is_dir",
         "/pathlib:iterdir", "/pathlib.py:_select_from", "/pathlib.py:_iterate_directories"),
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
        "uuids", "Making UUIDs takes much of the time",
        "number the items with a counter, or make one random prefix and count behind it",
        ("/uuid.py",), (), 30, is_avoidable=False,
    ),
    CostlyCall(
        "slow_json", "JSON is written by the slow encoder, which is written in Python",
        "write the text of `json.dumps(…)` in place of json.dump, which does without the fast "
        "encoder; leave out `indent` (before Python 3.15 the fast encoder knows none) and classes "
        "of one's own that override iterencode or default for much of the data; orjson and msgspec "
        "write all of it fast. Where all of a state is written again for each change, append what "
        "has changed",
        ("/json/encoder.py:_iterencode", "/json/encoder.py:_iterencode_dict",
         "/json/encoder.py:_iterencode_list"), share_pct=25,
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
