"""Kinds of work, the calls that are of each, and what people do about time spent in them."""

from __future__ import annotations

from typing import NamedTuple

from sonde.analysis.known_data_work import DATA_WORK


class WorkKind(NamedTuple):
    """One kind of work. A call is told by its module, package or the beginning of its name; the
    longest that fits counts."""

    kind: str
    calls: tuple[str, ...]
    instead: str = ""  # what people do if it works for long
    waiting: str = ""  # and if it waits there for long


PLAIN = WorkKind(
    "plain Python",
    (
        "list.append",
        "list.extend",
        "dict.get",
        "dict.setdefault",
        "dict.pop",
        "set.add",
        "set.discard",
        "collections.deque.append",
        "collections.deque.popleft",
        "collections.Counter",
    ),
    "the line itself takes the time, in Python, step by step. Where it goes through a list to find "
    "something, keep a dictionary or a set by what is asked for, and ask that; where the result is "
    "the same for the same input, keep it (functools.lru_cache); take out of a loop what does not "
    "change in it; work on whole arrays and tensors, not on one number after the other, or compile "
    "the loop (numba, Cython); give independent pieces to several processes",
)

_TOGETHER = (
    "if one does not need the answer of the other, ask for several at once (a ThreadPoolExecutor, "
    "asyncio.gather), or for more with each request; keep the connection open between them, and "
    "see why the other side takes so long"
)
# What a thread waits for, where the call that it is in says no more: the words of the kernel.
WAITS = (
    WorkKind(
        "the GIL",
        ("gil",),
        waiting="another thread has the GIL: move heavy Python work to other "
        "processes, or into calls that give the GIL back",
    ),
    WorkKind(
        "a lock",
        ("lock", "shared_lock"),
        waiting="see what the threads do that it waits for: "
        "what they are at decides how long this takes. Where it is a lock, hold it for less (not "
        "while reading, writing or sleeping), or give each thread data of its own",
    ),
    WorkKind(
        "sleep",
        ("sleep",),
        waiting="a sleep is time in which nothing happens: wait for what it "
        "is there for (an event, a queue, a reply), make it as short as the other side allows, or "
        "do other work meanwhile",
    ),
    WorkKind("the network", ("network",), waiting=_TOGETHER),
    WorkKind("input", ("poll",), waiting=_TOGETHER),
    WorkKind(
        "a pipe",
        ("pipe",),
        waiting="see what the process at the other end of the pipe does: it "
        "decides how long this takes; let several work at the same time, or do other work "
        "meanwhile",
    ),
    WorkKind(
        "a child process",
        ("child",),
        waiting="see what the other program does; start several at "
        "once if they are independent, give one program all of the work, or use a library in its "
        "place",
    ),
    WorkKind(
        "the disk",
        ("disk", "fault"),
        waiting="read or write more at a time, in another thread, "
        "or from a faster disk; keep what is read again, and call fsync less often",
    ),
)

WORK: tuple[WorkKind, ...] = (
    PLAIN,
    *(WorkKind(*one) for one in DATA_WORK),
    WorkKind(
        "a database",
        (
            "sqlite3",
            "sqlalchemy",
            "psycopg",
            "psycopg2",
            "asyncpg",
            "pymysql",
            "MySQLdb",
            "pymongo",
            "redis",
            "django.QuerySet",
            "django.Manager",
            "django.Model",
            "django.RelatedManager",
            "django.ForwardManyToOneDescriptor",
            "peewee",
            "duckdb",
            "aiosqlite",
            "motor",
            "oracledb",
            "pyodbc",
            "mysql",
            "cassandra",
            "elasticsearch",
            "sqlmodel",
        ),
        "see whether single statements are slow or there are many of them. Slow: give the columns "
        "that are searched or joined an index (EXPLAIN shows which tables are read whole), and ask "
        "only for what is used. Many: ask for all rows in one statement (IN, JOIN, executemany; "
        "select_related or joinedload in an ORM), in one transaction",
        "each statement is sent and waited for: ask for many rows with one statement, write many "
        "with one commit, give searched columns an index, and let threads or tasks have "
        "connections of their own if they ask at the same time",
    ),
    WorkKind(
        "the network",
        (
            "socket",
            "ssl",
            "http",
            "urllib",
            "urllib3",
            "requests",
            "httpx",
            "httpcore",
            "aiohttp",
            "ftplib",
            "smtplib",
            "boto3",
            "botocore",
            "grpc",
            "websockets",
            "websocket",
            "paramiko",
            "imaplib",
            "poplib",
            "xmlrpc",
            "telnetlib",
            "google",
            "azure",
            "kafka",
            "pika",
            "zmq",
        ),
        "keep connections open (one Session or Client for all), move more with each call, and read "
        "large pieces: not byte by byte, and not `data += chunk`",
        _TOGETHER,
    ),
    WorkKind(
        "the addresses of hosts (DNS)",
        ("socket.getaddrinfo", "socket.gethostbyname"),
        "keep connections open in place of a new one for each request",
        "keep connections open in place of a new one for each request, and see whether the name "
        "server answers slowly",
    ),
    WorkKind(
        "web addresses",
        (
            "urllib.urlparse",
            "urllib.urlsplit",
            "urllib.parse_qs",
            "urllib.quote",
            "urllib.unquote",
            "urllib.urlencode",
            "yarl",
            "ipaddress",
        ),
        "parse each address once and keep its parts; functools.lru_cache for those that recur",
    ),
    WorkKind(
        "starting processes",
        (
            "subprocess",
            "multiprocessing.Process.start",
            "multiprocessing.BaseProcess.start",
            "multiprocessing.Popen",
            "os.system",
            "os.popen",
            "os.fork",
            "pexpect",
        ),
        "start one program for many items (its standard input, a list of files), or use a library "
        "in its place; keep worker processes in place of starting new ones",
        "the other program decides how long this takes: start several at once if they are "
        "independent, give one program all of the work, or use a library in its place",
    ),
    WorkKind(
        "waiting for a child process",
        ("os.wait", "os.waitpid", "os.waitid", "os.wait3", "os.wait4"),
        "",
        "see what the child does (`sonde tree` of its pid): it decides how long this takes; "
        "start several at once if they are independent",
    ),
    WorkKind(
        "waiting for room in a queue",
        (
            "queue.Queue.put",
            "multiprocessing.Queue.put",
            "multiprocessing.JoinableQueue.put",
            "asyncio.Queue.put",
        ),
        "handing work over has its price: put larger pieces into the queue",
        "the queue is full: whoever takes from it is too slow for those who put in. See what is "
        "done for each item there, let several take from it at the same time, or do many items at "
        "once; a longer queue only hides it",
    ),
    WorkKind(
        "waiting for other threads or processes",
        (
            "threading",
            "queue",
            "concurrent",
            "multiprocessing",
            "joblib",
            "billiard",
            "thread.lock.acquire",
            "lock.acquire",
        ),
        "handing work over has its price: make the pieces that threads or processes are given "
        "larger, and send less with each",
        "what it waits for decides: see the lines of the other threads and processes. Where "
        "workers rest while one works, hand out smaller or more even pieces (chunksize=1, "
        "imap_unordered); where they all work, there is too much to do for so many",
    ),
    WorkKind(
        "the event loop",
        ("asyncio", "uvloop", "anyio", "trio"),
        "many small callbacks and tasks have their price: give each more to do (fewer and larger "
        "reads and messages, no task for each tiny piece), or use uvloop",
        "see what its tasks await",
    ),
    WorkKind(
        "sleeping",
        ("time.sleep",),
        "sleeping for no time keeps a processor awake: wait for what the loop asks about",
        "a sleep is time in which nothing happens: wait for what it is there for (an event, a "
        "queue, a reply), make it as short as the other side allows, or do other work meanwhile",
    ),
    WorkKind(
        "logging",
        ("logging", "loguru", "structlog"),
        "log less where it is hot (every thousandth time, or sums), pass arguments and not "
        "formatted text, ask isEnabledFor before making text, and hand records to a QueueHandler",
    ),
    WorkKind(
        "text for the screen",
        ("print", "rich", "tqdm", "click", "sys.stdout", "tabulate"),
        "print and draw less often (a progress bar ten times a second at most), and all of it at "
        "once",
        "whoever reads the output is slow, or it is a terminal: print less, and more at a time",
    ),
    WorkKind(
        "compiling",
        (
            "torch._dynamo",
            "torch._inductor",
            "ast",
            "compileall",
            "jinja2",
            "compile",
            "eval",
            "exec",
            "mako",
            "django.Template",
            "numba",
            "sympy",
            "tokenize",
        ),
        "compile once and keep the result: the function, the template, the Environment, the "
        "lambdified formula",
    ),
    WorkKind(
        "importing",
        ("import", "importlib", "importing modules", "pkg_resources"),
        "import at the top of the file and not in a function that runs often; an import that "
        "fails is tried again each time",
    ),
    WorkKind(
        "looking at its own code",
        ("inspect", "traceback", "linecache", "typing", "warnings", "abc", "dis"),
        "do not look at stacks, signatures or types each time: do it once and keep the answer",
    ),
    WorkKind(
        "collecting garbage",
        ("gc",),
        "leave gc.collect() out of the loop: Python collects when there is something to collect. "
        "If its own collections take long, gc.freeze() what stays for ever, or raise the first "
        "number of gc.set_threshold",
    ),
    WorkKind(
        "checking and building models",
        (
            "pydantic",
            "marshmallow",
            "attr",
            "attrs",
            "cattrs",
            "dataclasses",
            "jsonschema",
            "cerberus",
            "enum",
        ),
        "check data where it comes in and not at each step inside; build types and validators "
        "once; use model_construct, or plain dataclasses and tuples, for data that is known to be "
        "right",
    ),
    WorkKind(
        "drawing",
        ("matplotlib", "seaborn", "plotly", "bokeh", "altair"),
        "draw less often and fewer points, keep one figure and change its data, and close figures "
        "that are done",
    ),
    WorkKind(
        "asking again and again",
        ("while",),
        "wait in place of asking: queue.get() with a timeout, Event.wait(), Future.result(), "
        "selectors; at least sleep between two questions",
    ),
)
