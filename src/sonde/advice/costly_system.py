"""Costly calls of Python's own library, outside of values: files, settings, threads, tasks."""

from __future__ import annotations

from sonde.advice.costly_calls import SHORT, WORKING, CostlyCall
from sonde.advice.costly_standard import name_calls, name_frames

SYSTEM = (
    CostlyCall(
        "log_sent", "Each record of the log is sent to another program by the line that logs",
        "give the logger a QueueHandler, and the handler that sends (SMTP, HTTP, syslog, a socket) "
        "to a QueueListener, which sends in a thread of its own",
        name_frames("/logging/handlers.py", "SMTPHandler.emit HTTPHandler.emit SocketHandler.emit "
                    "SysLogHandler.emit DatagramHandler.send"), (), 15,
    ),
    CostlyCall(
        "settings_asked", "Settings or variables of the environment are looked up again and again",
        "take each value once, before the loop, into a variable or a dataclass: each question to a "
        "ConfigParser works the value out anew, and each to the environment encodes and decodes",
        (*name_frames("/configparser.py", "get getint getfloat getboolean _get_conv has_option "
                      "items __getitem__"), "<frozen os>:__getitem__",
         "/omegaconf/", "/dynaconf/", "/decouple.py:", "/environs/", "/environ/environ.py:"),
        (), 20,
    ),
    CostlyCall(
        "settings_read", "Files of settings are read and parsed again and again",
        "read them once, at the start, and keep what they say; to see changes, compare the time of "
        "change of the file first",
        (*name_frames("/configparser.py", "read read_string read_file _read"), "/tomllib/",
         "/tomli/", "/dotenv/", "/toml/decoder.py:", "/pydantic_settings/"), (), 20,
        stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "options_parsed", "Parsers of arguments are made or used again and again (argparse)",
        "make the parser once and keep it; inside of a program, hand values over as arguments of "
        "functions and not as text to be parsed", ("/argparse.py:", "/optparse.py:", "/docopt.py:"),
        (), 20, stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "warnings_raised", "Warnings are raised, shown or filtered again and again",
        "change what the warnings tell, or filter them once, at the start "
        "(warnings.filterwarnings); catch_warnings in a loop has each warning be new, and shown, "
        "again",
        name_frames("/warnings.py", "_showwarnmsg _showwarnmsg_impl showwarning formatwarning "
                    "_formatwarnmsg _formatwarnmsg_impl simplefilter filterwarnings resetwarnings "
                    "_add_filter catch_warnings.__enter__ catch_warnings.__exit__ "
                    "catch_warnings.__init__"),
        ("_warnings.warn", "_warnings.warn_explicit"), 20,
    ),
    CostlyCall(
        "tracebacks", "Making the text of errors (tracebacks) takes much of the time",
        "log errors that are usual without their traceback (no `exc_info`, no log.exception): each "
        "makes the text of a whole stack, and looks whether source files have changed",
        (*name_frames("/traceback.py", "format format_exc format_exception format_stack print_exc "
                      "print_exception format_list format_tb TracebackException.__init__"),
         "/linecache.py:checkcache"), (), 20,
    ),
    CostlyCall(
        "system_random", "Random numbers are asked from the system one by one (secrets, urandom)",
        "use `random` for what is no secret; for secrets, ask for many bytes at once and cut them",
        ("/secrets.py:", "/random.py:SystemRandom."), ("posix.urandom", "posix.getrandom"), 25,
    ),
    CostlyCall(
        "machine_asked", "Questions about this machine or Python are asked again and again",
        "ask once and keep the answer: platform, sysconfig, shutil.which and getfqdn read files, "
        "ask name servers or start programs",
        ("/platform.py:", "/sysconfig.py:", "/shutil.py:which", "/socket.py:getfqdn",
         "/mimetypes.py:init", "/mimetypes.py:read", "/mimetypes.py:MimeTypes.__init__",
         "/getpass.py:getuser"),
        ("_socket.gethostbyaddr", "pwd.getpwuid", "pwd.getpwnam", "grp.getgrgid"), 15,
        stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "processes_asked", "Asking about processes and the machine (psutil) takes much of the time",
        "ask less often, keep the Process objects, ask for several numbers inside of `oneshot()`, "
        "and do not go through all processes for one",
        ("/psutil/",), (), 20,
    ),
    CostlyCall(
        "files_copied", "Copying or deleting files takes much of the time",
        "move (os.replace) or link (os.link) on the same disk in place of copying, leave out what "
        "is there already, and copy several at once in threads",
        name_frames("/shutil.py", "copyfile copyfileobj copytree rmtree move copy2 copy"), (), 30,
    ),
    CostlyCall(
        "folders_made", "Making folders that are there already takes much of the time",
        "remember which folders have been made (a set), or make all of them once, at the start",
        ("<frozen os>:makedirs", "/os.py:makedirs", "/pathlib.py:mkdir",
         "/pathlib/__init__.py:mkdir"),
        ("posix.mkdir",), 15, stretch=SHORT,
    ),
    CostlyCall(
        "folders_walked", "Walking through folders takes much of the time",
        "walk once and keep what was found, leave out folders that are not needed (change `dirs` "
        "in place), and use os.scandir, whose entries know their kind",
        ("<frozen os>:walk", "<frozen os>:_walk", "/os.py:walk", "/pathlib.py:walk"), (), 25,
    ),
    CostlyCall(
        "paths_made", "Making and joining paths takes much of the time",
        "in a hot loop, join text (`f'{folder}/{name}'`): each Path is an object that is parsed "
        "anew; work out what does not change before the loop",
        (*name_frames("/pathlib.py",
         "__new__ __truediv__ __rtruediv__ __str__ joinpath relative_to "
                      "with_suffix with_name _from_parts _parse_args _make_child parent suffix "
                      "__fspath__ __hash__ __eq__ name parts"),
         *name_frames("<frozen posixpath>", "join normpath relpath abspath split splitext dirname "
                      "basename commonpath expanduser")), (), 30,
    ),
    CostlyCall(
        "archive_searched", "The list of an archive is gone through for each file in it",
        "keep a dictionary of its members by name (`{m.name: m for m in tar}`) or a set of the "
        "names, and take them out in the order in which they lie in the archive",
        (*name_frames("/tarfile.py", "TarFile.getmember TarFile._getmember TarFile.getmembers "
                      "TarFile.getnames TarFile._load"),
         *name_frames("/zipfile.py", "namelist infolist"),
         *name_frames("/zipfile/__init__.py", "namelist infolist")), (), 20, stretch=SHORT,
    ),
    CostlyCall(
        "archive_rewound",
        "Going to a place in compressed data decompresses all that lies before it",
        "read it from front to back (the members of a .tar.gz in their order), decompress it once "
        "to a file or to memory, or use a form with places to enter at (zip, an uncompressed tar)",
        ("/_compression.py:seek", "/gzip.py:seek", "/gzip.py:rewind", "/gzip.py:GzipFile.seek",
         "/compression/_common/_streams.py:seek", "/bz2.py:seek", "/lzma.py:seek",
         "/zipfile.py:ZipExtFile.seek", "/zipfile/__init__.py:ZipExtFile.seek"), (), 20,
    ),
    CostlyCall(
        "loops_made", "An event loop is made for each call (asyncio.run)",
        "call asyncio.run once, around all of it, or keep one asyncio.Runner; from threads, use "
        "run_coroutine_threadsafe with one loop",
        (*name_frames("/asyncio/runners.py", "Runner._lazy_init Runner.close Runner.__exit__ "
                      "_cancel_all_tasks"), "/asyncio/events.py:new_event_loop",
         "/asyncio/unix_events.py:__init__", "/asyncio/selector_events.py:__init__",
         "/asyncio/selector_events.py:close", "/asyncio/base_events.py:__init__"), (), 15,
        stretch=SHORT, is_once=True,
    ),
    CostlyCall(
        "tiny_tasks", "Making tasks of asyncio takes much of the time",
        "give each task more to do: await a coroutine that never waits without a task, gather "
        "pieces of some hundreds, and let a few workers take from a queue",
        (*name_frames("/asyncio/tasks.py", "gather create_task ensure_future _ensure_future wait "
                      "as_completed wait_for shield"), "/asyncio/taskgroups.py:create_task",
         "/asyncio/timeouts.py:"), ("_asyncio.Task",), 25,
    ),
    CostlyCall(
        "tiny_jobs", "Handing small pieces of work to threads or processes takes much of the time",
        "make the pieces larger: hand over lists of some hundreds (`chunksize=` of a "
        "ProcessPoolExecutor's map), or do tiny ones in place",
        ("/concurrent/futures/thread.py:submit", "/concurrent/futures/process.py:submit",
         "/concurrent/futures/_base.py:map", "/concurrent/futures/_base.py:Future.__init__",
         "/asyncio/threads.py:to_thread", "/asyncio/base_events.py:run_in_executor",
         "/asgiref/sync.py:"), (), 25, state=WORKING,
    ),
    CostlyCall(
        "shared_elements", "Elements of a multiprocessing.Array are asked for one by one",
        "make one view of all of it (`numpy.frombuffer(array.get_obj())`), and hold the lock once "
        "around many changes: each element takes and gives back the lock of all processes",
        name_frames("/multiprocessing/sharedctypes.py", "__getitem__ __setitem__ __getslice__ "
                    "__setslice__ __len__ SynchronizedArray.__getitem__"), (), 20, stretch=SHORT,
    ),
    CostlyCall(
        "items_handed", "Handing single items from thread to thread takes much of the time",
        "put lists of some hundreds into the queue; queue.SimpleQueue and collections.deque are "
        "faster than queue.Queue",
        ("/queue.py:put", "/queue.py:get"), (), 30, state=WORKING,
    ),
    CostlyCall(
        "objects_listed", "The program asks Python for all of its objects, or what refers to them",
        "leave gc.get_objects, gc.get_referrers and snapshots of tracemalloc for debugging: each "
        "goes through all that is in memory",
        ("/tracemalloc.py:",), name_calls("gc", "get_objects get_referrers get_referents")
        + ("_tracemalloc._get_traces",), 15,
    ),
    CostlyCall(
        "shelf_pickled", "Each access to a shelf (shelve) pickles or unpickles the whole object",
        "take the object into a variable, change it, and store it once; keep many small values in "
        "sqlite3", name_frames("/shelve.py", "__getitem__ __setitem__ get sync"), (), 25,
    ),
    CostlyCall(
        "dumb_dbm", "Keys are kept by dbm.dumb, which is written in Python",
        "use dbm.gnu, dbm.sqlite3 (Python 3.13) or sqlite3", ("/dbm/dumb.py:",), (), 15,
    ),
    CostlyCall(
        "codecs_read", "Files are read through `codecs`, line by line, in Python",
        "open(path, encoding=…) in place of codecs.open, which is many times slower",
        name_frames("/codecs.py", "StreamReader.read StreamReader.readline StreamReader.next "
                    "StreamReader.__next__ StreamReaderWriter.read StreamReaderWriter.readline "
                    "StreamReaderWriter.__next__ StreamReaderWriter.next StreamReaderWriter.write "
                    "StreamWriter.write"), (), 20,
    ),
    CostlyCall(
        "mapped_flushed", "A file that is mapped into memory is flushed again and again",
        "flush once for many changes, or once at the end: each waits for the disk",
        (), ("mmap.mmap.flush",), 15,
    ),
    CostlyCall(
        "printed", "Printing takes much of the time",
        "print less often, and much at once (join the lines first); whoever reads the output, a "
        "terminal, may be what is slow",
        (), ("builtins.print",), 30,
    ),
    CostlyCall(
        "modules_anew", "Modules are loaded or looked for again and again",
        "import once; keep what importlib.util.find_spec and importlib.resources have found",
        ("/importlib/__init__.py:reload", "<frozen importlib.util>:find_spec",
         "/importlib/util.py:find_spec", "/importlib/resources/", "/importlib_resources/"), (), 15,
        is_once=True,
    ),
    CostlyCall(
        "sessions_opened",
        "Connections to a mail, file or shell server are opened for each message",
        "log in once, and send all of them through the same connection",
        ("/smtplib.py:SMTP.__init__", *name_frames("/smtplib.py",
         "connect login starttls SMTP.quit"),
         "/ftplib.py:FTP.__init__", "/ftplib.py:connect", "/ftplib.py:login",
         "/imaplib.py:__init__", "/imaplib.py:login", "/paramiko/client.py:connect",
         "/paramiko/transport.py:start_client"), (), 20, is_once=True,
    ),
    CostlyCall(
        "watched_lines", "A debugger, a tracer or a measurement of coverage watches each line",
        "run without it where time matters: it is called at each line of the program",
        ("/bdb.py:trace_dispatch", "/bdb.py:dispatch_line", "/trace.py:localtrace",
         "/coverage/pytracer.py:", "/_pydevd_bundle/"), (), 10,
    ),
    CostlyCall(
        "mocked", "Mock objects of tests (unittest.mock) take much of the time",
        "in a loop, use a small class of your own; make `create_autospec` and `spec=` once",
        ("/unittest/mock.py:",), (), 30,
    ),
)  # fmt: skip
