/* The native stacks of all threads at a fault: see crash_stacks.h.
 *
 * The thread of the fault stands still in the handler. One that is in the kernel is where it entered it, as
 * the kernel says, and is not interrupted. One that runs is asked by a signal, once. The process may be damaged: nothing
 * here allocates, and memory is read by system calls only. */
#define _GNU_SOURCE 1
#include "stacks/crash_stacks.h"
#include "kernel/filter.h"
#include "kernel/read_memory.h"
#include "kernel/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAGIC 0x68736172636e6f73u /* "soncrash" */
enum { VERSION = 1, MAPS = 1, THREAD = 2, GAP = 3 };
enum { FORBIDDEN = 1, NO_ROOM = 2 }; /* why threads lack */
enum { FAULT, WAITS, RUNS };
enum { ANSWER_NS = 10000000, PATIENCE_NS = 60000000 };
enum { PAGE = 4096, MOST_STACK = 65536, MOST_OVER = 16384, MOST_BYTES = 4 << 20, MOST_THREADS = 512, MOST_RANGES = 16384 };

typedef struct {
    uint64_t magic;
    uint32_t version, pad;
    int64_t t_ns;
    uint64_t tid;
} head;

typedef struct {
    uint32_t kind, bytes; /* of what follows */
} record_head;

/* Then come the registers, the ends of calls (4 bytes each) and the stack from `sp` on. */
typedef struct {
    record_head head;
    uint64_t tid, pc, sp;
    uint32_t how, first, registers; /* what is known of it: so many registers, from this number on */
    uint32_t ends, depth;           /* calls of Python's interpreter, and frames of Python */
    uint32_t pad;
} thread_record;

_Static_assert(sizeof(thread_record) == 56, "thread record layout");

static uint8_t room[MOST_STACK]; /* only one thread samples */
static thread_record held;
static uint64_t words[SONDE_REGISTERS];
static uint32_t ends[SONDE_MAX_DEPTH], written[MOST_THREADS], written_n;

typedef struct {
    uint64_t begin, end;
} range;

static range ranges[MOST_RANGES]; /* the mappings that can be a stack, in ascending order */
static uint32_t ranges_n;

/* ---- the file --------------------------------------------------------------------------------- */

static void end_file(sonde_crash_stacks *crash)
{
    if (crash->fd >= 0)
        close(crash->fd);
    crash->fd = -1;
}

/* Say why the file ends here; that finds room where a thread does not. */
static void end_early(sonde_crash_stacks *crash, uint32_t why)
{
    struct {
        record_head head;
        uint32_t why;
    } gap = {{GAP, sizeof why}, why};
    if (crash->fd >= 0)
        (void)!write(crash->fd, &gap, sizeof gap);
    end_file(crash);
}

static void write_parts(sonde_crash_stacks *crash, const struct iovec *parts, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += parts[i].iov_len;
    if (bytes > crash->left)
        end_early(crash, NO_ROOM);
    else if (crash->fd < 0 || writev(crash->fd, parts, n) != (ssize_t)bytes)
        end_file(crash); /* what is complete by now is kept */
    else
        crash->left -= bytes;
}

/* Note the mappings of a piece of /proc/self/maps that can be read and written: "begin-end rw...". A line may go on
 * in the next piece. */
static void note_mappings(const uint8_t *text, size_t bytes)
{
    static range line;
    static int field, is_read;
    for (size_t i = 0; i < bytes; i++) {
        uint8_t c = text[i];
        uint64_t digit = c <= '9' ? (uint64_t)(c - '0') : (uint64_t)(c - 'a' + 10);
        if (c == '\n') {
            line = (range){0, 0};
            field = 0;
        } else if (field == 0 && c != '-') {
            line.begin = line.begin << 4 | digit;
        } else if (field == 1 && c != ' ') {
            line.end = line.end << 4 | digit;
        } else if (field < 4) {
            if (field == 2)
                is_read = c == 'r';
            if (field == 3 && is_read && c == 'w' && ranges_n < MOST_RANGES)
                ranges[ranges_n++] = line;
            field++;
        }
    }
}

/* The program may be out of descriptors, or its disk full: then there are Python's frames only. */
static void write_maps(sonde_crash_stacks *crash)
{
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t bytes = 0;
    while (maps >= 0 && crash->fd >= 0 && (bytes = read(maps, room, sizeof room)) > 0) {
        record_head kind = {MAPS, (uint32_t)bytes};
        note_mappings(room, (size_t)bytes);
        write_parts(crash, (struct iovec[]){{&kind, sizeof kind}, {room, (size_t)bytes}}, 2);
    }
    if (maps >= 0)
        close(maps);
}

static void begin_file(sonde_crash_stacks *crash, const char *folder)
{
    static char path[4096];
    end_file(crash);
    if (sonde_has_later_filter_within(SONDE_NOW_NS))
        return;
    snprintf(path, sizeof path, "%s/crash.stacks", folder);
    crash->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    crash->left = MOST_BYTES;
    crash->is_complete = 0;
    crash->patience_ns = PATIENCE_NS;
    written_n = ranges_n = 0;
    head first = {MAGIC, VERSION, 0, crash->t_ns, crash->fault->tid};
    write_parts(crash, &(struct iovec){&first, sizeof first}, 1);
    if (crash->fd < 0)
        (void)unlink(path); /* nobody could read it */
    else if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1)
        end_early(crash, FORBIDDEN); /* a program that wants no core file of itself has its reasons */
    else
        write_maps(crash);
}

int sonde_crash_begin(sonde_crash_stacks *crash, const char *folder)
{
    crash->fault = crash->is_wanted ? sonde_fatal_fault() : NULL;
    if (crash->fault == NULL) {
        if (crash->is_ours)
            sonde_place_rest();
        if (crash->t_ns)
            end_file(crash);
        crash->is_ours = 0;
        crash->t_ns = 0;
        return 0;
    }
    if (crash->t_ns != crash->fault->t_ns) {
        if (crash->t_ns == 0)
            crash->fd = -1;
        crash->t_ns = crash->fault->t_ns;
        begin_file(crash, folder);
        crash->is_ours |= !sonde_place_is_prepared() && sonde_place_prepare() == 0;
    }
    return crash->fd >= 0;
}

/* ---- one thread ---------------------------------------------------------------------------------- */

static int is_written(uint32_t tid)
{
    for (uint32_t i = 0; i < written_n; i++)
        if (written[i] == tid)
            return 1;
    return 0;
}

int sonde_crash_wants(const sonde_crash_stacks *crash, uint32_t tid)
{
    return crash->fault != NULL && crash->fd >= 0 && !is_written(tid);
}

static void note(uint64_t pc, uint64_t sp, uint32_t first, uint32_t registers)
{
    held = (thread_record){.pc = pc, .sp = sp, .first = first, .registers = registers};
}

/* Ask a thread that runs, or is about to: on a busy machine it may have to wait for a processor first. */
static int ask(sonde_crash_stacks *crash, uint32_t tid)
{
    sonde_thread_place place;
    int64_t begin_ns = sonde_clock_ns();
    if (!sonde_place_is_prepared() || crash->patience_ns <= 0)
        return 0;
    int status = sonde_place_ask(tid, crash->patience_ns < ANSWER_NS ? crash->patience_ns : ANSWER_NS, &place);
    crash->patience_ns -= sonde_clock_ns() - begin_ns;
    if (status < 0)
        return 0;
    note(place.pc, place.sp, SONDE_REGISTER_FP, SONDE_REGISTER_SP - SONDE_REGISTER_FP + 1);
    words[0] = place.fp;
    words[held.registers - 2] = held.registers > 2 ? place.link : place.fp;
    words[held.registers - 1] = place.sp;
    return 1;
}

static int find_place(sonde_crash_stacks *crash, uint32_t tid)
{
    uint64_t pc = 0, sp = 0;
    if (tid == crash->fault->tid) {
        const sonde_thread_registers *at = &crash->fault->at;
        note(at->pc, at->word[SONDE_REGISTER_SP], 0, SONDE_REGISTERS);
        memcpy(words, at->word, sizeof words);
        crash->how = FAULT;
        return 1;
    }
    if (sonde_wait_place(tid, &pc, &sp) == 0) {
        note(pc, sp, SONDE_REGISTER_SP, 1);
        words[0] = sp;
        crash->how = WAITS;
        return 1;
    }
    crash->how = RUNS;
    return ask(crash, tid);
}

int sonde_crash_hold(sonde_crash_stacks *crash, uint32_t tid)
{
    if (!sonde_crash_wants(crash, tid))
        return 0;
    if (written_n == MOST_THREADS) {
        end_early(crash, NO_ROOM);
        return 0;
    }
    if (!find_place(crash, tid))
        return 0;
    held.tid = crash->tid = tid;
    held.how = (uint32_t)crash->how;
    return 1;
}

/* Return the mapping of a stack: what lies beyond is another's. A stack that has run over is still one, a large
 * frame below its mapping. An empty one: there is none. */
static range find_mapping(uint64_t sp)
{
    for (uint32_t i = 0; i < ranges_n; i++)
        if (sp < ranges[i].end)
            return sp + MOST_OVER >= ranges[i].begin ? ranges[i] : (range){sp, sp};
    return (range){sp, sp};
}

/* Page by page, as far as it can be read; where a stack has run over, it is empty. Returns how many bytes there are. */
static size_t copy_stack(uint64_t sp)
{
    range stack = find_mapping(sp);
    size_t over = sp < stack.begin ? stack.begin - sp : 0, bytes = over, piece = PAGE - (sp + bytes) % PAGE;
    memset(room, 0, over);
    while (bytes + piece <= sizeof room && sp + bytes + piece <= stack.end &&
           sonde_read_memory(room + bytes, sp + bytes, piece) == 0) {
        bytes += piece;
        piece = PAGE;
    }
    return bytes == over ? 0 : bytes;
}

/* Is a thread, whose stack has been copied, where it was before? */
static int is_still_there(const sonde_crash_stacks *crash)
{
    uint64_t pc = 0, sp = 0;
    if (crash->how == RUNS)
        return sonde_place_let_go();
    return crash->how == FAULT ||
           (sonde_wait_place(crash->tid, &pc, &sp) == 0 && pc == held.pc && sp == held.sp);
}

int sonde_crash_is_still(const sonde_crash_stacks *crash, int64_t cpu_ns)
{
    return crash->how == FAULT || (crash->how == WAITS && sonde_thread_cpu(crash->tid) == cpu_ns);
}

void sonde_crash_release(sonde_crash_stacks *crash, const sonde_stack *stack)
{
    size_t bytes = copy_stack(held.sp);
    if (!is_still_there(crash) || stack == NULL)
        return;
    held.depth = (uint32_t)stack->depth;
    held.ends = (uint32_t)stack->ends_n;
    for (int i = 0; i < stack->ends_n; i++)
        ends[i] = stack->ends[i];
    held.head.kind = THREAD;
    held.head.bytes = (uint32_t)(sizeof held - sizeof held.head + held.registers * sizeof *words +
                                 held.ends * sizeof *ends + bytes);
    struct iovec parts[] = {{&held, sizeof held},
                            {words, held.registers * sizeof *words},
                            {ends, held.ends * sizeof *ends},
                            {room, bytes}};
    write_parts(crash, parts, 4);
    written[written_n++] = crash->tid;
}

/* ---- threads that run no Python ---------------------------------------------------------------------- */

struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t kind;
    char name[];
};

static int runs_python(const sonde_threads *known, uint32_t tid)
{
    for (uint32_t i = 0; i < known->count; i++)
        if (known->list[i]->tid == tid && !known->list[i]->is_bare)
            return 1;
    return 0;
}

static void write_bare(sonde_crash_stacks *crash, uint32_t tid)
{
    static sonde_stack none; /* too large for our stack, and never written to */
    if (tid != 0 && sonde_crash_hold(crash, tid))
        sonde_crash_release(crash, &none);
}

void sonde_crash_complete(sonde_crash_stacks *crash, const sonde_threads *known, uint32_t own, uint32_t helper)
{
    static _Alignas(8) char names[2048];
    if (crash->is_complete || crash->fd < 0)
        return;
    crash->is_complete = 1;
    int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long bytes = 0;
    while (tasks >= 0 && (bytes = syscall(SYS_getdents64, tasks, names, sizeof names)) > 0)
        for (long at = 0; at < bytes; at += ((const struct entry *)(names + at))->bytes) {
            uint32_t tid = (uint32_t)strtoul(((const struct entry *)(names + at))->name, NULL, 10);
            if (tid != own && tid != helper && !runs_python(known, tid))
                write_bare(crash, tid);
        }
    if (tasks >= 0)
        close(tasks);
}
