/* The name and the lines of each code object, read once.
 *
 * The table is keyed by address, and an address is used again once its code object is gone. So we
 * watch code objects being destroyed, through the type's tp_dealloc, and what was read is believed
 * only if the frame that led to it is still there afterwards.
 */
#define _GNU_SOURCE 1
#include "stacks/frames.h"
#include "stacks/utf8.h"
#include "stacks/lock_object.h"
#include "stacks/loops.h"
#include "kernel/fork.h"
#include "kernel/read_memory.h"

#if SONDE_HAS_FRAMES

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SLOTS (1u << 15)
#define MOST (SLOTS / 2)
/* Beyond this all are forgotten; there are at most two such tables. It is room for some 3,000 functions.
 * Where it is full again after a few stacks, the program needs more. */
#define FEW_BYTES (1u << 20)
#define MOST_BYTES (8u << 20)
#define FEW_STACKS 4
#define MOST_UNITS (1u << 22)
#define CHUNK_BYTES (256u << 10)
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14; the headers of older C libraries lack it */
#endif

typedef struct chunk {
    struct chunk *next;
    size_t bytes, used;
} chunk;

typedef struct {
    sonde_code *slot[SLOTS];
    chunk *chunks; /* of all entries, also of those that others replaced: somebody may still hold them */
    uint32_t used;
    uint64_t bytes;
    uint32_t stacks; /* read since the table is there */
} sonde_codes;

SONDE_CHANGED_IN_CHILD static sonde_codes *codes, *retired;
static uint32_t last_id;
static uint64_t deaths; /* code objects destroyed; atomic */
SONDE_CHANGED_IN_CHILD static uint32_t inside; /* threads that are in on_death(); atomic */
static uint64_t most_bytes = FEW_BYTES;

static uint32_t place_of(uintptr_t address)
{
    uint64_t h = (uint64_t)(address >> 4) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40) & (SLOTS - 1);
}

/* Return the slot of an address, or the empty one where it belongs. */
static sonde_code **find_slot(sonde_codes *table, uintptr_t address)
{
    for (uint32_t at = place_of(address);; at++) {
        sonde_code **slot = &table->slot[at & (SLOTS - 1)];
        sonde_code *code = sonde_load_acquire(slot);
        if (code == NULL || code->address == address)
            return slot;
    }
}

/* ---- destruction ---------------------------------------------------------------- */

static void on_death(uintptr_t address)
{
    sonde_add_total(&inside, 1);
    /* Total: counted before the lookup, so an entry that is stored after it is not believed; see
     * sonde_codes_get(). */
    sonde_add_total(&deaths, 1);
    sonde_codes *table = sonde_load_total(&codes);
    sonde_code *code = table == NULL ? NULL : sonde_load_acquire(find_slot(table, address));
    if (code != NULL)
        sonde_store_relaxed(&code->alive, 0);
    sonde_add_release(&inside, UINT32_MAX); /* after the last use of the table */
}

static destructor dealloc_before;
static void (*listener)(uintptr_t address); /* atomic */

static void dealloc(PyObject *code)
{
    on_death((uintptr_t)code);
    void (*also)(uintptr_t) = sonde_load_relaxed(&listener);
    if (also != NULL)
        also((uintptr_t)code);
    dealloc_before(code);
}

void sonde_codes_watch(void)
{
    /* Ours stays in place for good: whoever replaced it after us calls it. CPython's own watchers (3.12)
     * tell of one interpreter only, and this type is the same in all of them. */
    if (dealloc_before != NULL)
        return;
    dealloc_before = PyCode_Type.tp_dealloc;
    PyCode_Type.tp_dealloc = dealloc;
}

void sonde_codes_tell(void (*died)(uintptr_t address))
{
    sonde_codes_watch();
    sonde_store_relaxed(&listener, died);
}

/* ---- texts ------------------------------------------------------------------------ */

static char utf8[SONDE_MOST_CHARS * 4 + 4]; /* large, and used by one thread only */
static size_t utf8_bytes;             /* of the last one */

/* Intern the str at an address. Returns 0, or -1 if there is no str. */
static int take_str(uintptr_t address, const sonde_intern_handle *text, uint32_t *id, uint64_t *hash)
{
    static char raw[SONDE_MOST_CHARS * 4];
    PyASCIIObject head;
    if (sonde_read_memory(&head, address, sizeof head) < 0 || head.ob_base.ob_type != &PyUnicode_Type ||
        !head.state.compact || head.length < 0)
        return -1;
    size_t kind = (size_t)head.state.kind;
    if (kind != 1 && kind != 2 && kind != 4)
        return -1;
    size_t chars = head.length > SONDE_MOST_CHARS ? SONDE_MOST_CHARS : (size_t)head.length;
    size_t offset = head.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
    if (chars && sonde_read_memory(raw, address + offset, chars * kind) < 0)
        return -1;
    size_t used = sonde_put_str(utf8, raw, kind, (size_t)head.length);
    *hash = sonde_hash_bytes(*hash, utf8, used);
    utf8_bytes = used;
    *id = sonde_intern_put(text, utf8, (uint32_t)used); /* 0 if full: counted there */
    return 0;
}

/* ---- reading one -------------------------------------------------------------------- */

static int take_lines(sonde_code *code, uintptr_t table, int32_t first_line)
{
    static uint8_t small[4096];
    PyVarObject head;
    if (sonde_read_memory(&head, table, sizeof head) < 0 || head.ob_base.ob_type != &PyBytes_Type ||
        head.ob_size < 0 || head.ob_size > (Py_ssize_t)MOST_UNITS * 16)
        return -1;
    size_t bytes = (size_t)head.ob_size;
    uint8_t *copy = bytes <= sizeof small ? small : malloc(bytes);
    int status = copy == NULL ? -1 : 0;
    if (status == 0 && bytes)
        status = sonde_read_memory(copy, table + offsetof(PyBytesObject, ob_sval), bytes);
    if (status == 0) {
#if PY_VERSION_HEX >= 0x030b0000
        sonde_lines_311(code->lines, code->units, copy, (uint32_t)bytes, first_line);
#else
        sonde_lines_310(code->lines, code->units, copy, (uint32_t)bytes, first_line);
#endif
    }
    if (copy != small)
        free(copy);
    /* Instructions that the compiler added have no line of their own: they get that of the one
     * before. */
    for (uint32_t i = 0; status == 0 && i < code->units; i++)
        if (code->lines[i] < 0)
            code->lines[i] = i ? code->lines[i - 1] : first_line;
    return status < 0 ? -1 : 0;
}

static int count_units(const PyCodeObject *copy, uint32_t *units)
{
#if PY_VERSION_HEX >= 0x030b0000
    Py_ssize_t found = ((const PyVarObject *)copy)->ob_size;
#else
    PyVarObject head;
    if (sonde_read_memory(&head, (uintptr_t)copy->co_code, sizeof head) < 0)
        return -1;
    Py_ssize_t found = head.ob_size / 2;
#endif
    if (found < 0 || found > (Py_ssize_t)MOST_UNITS)
        return -1;
    *units = (uint32_t)found;
    return 0;
}

static int fill(sonde_code *code, const PyCodeObject *copy, const sonde_intern_handle *text)
{
    uint64_t hash = SONDE_HASH_SEED;
#if PY_VERSION_HEX >= 0x030b0000
    uintptr_t name = (uintptr_t)copy->co_qualname;
#else
    uintptr_t name = (uintptr_t)copy->co_name;
#endif
    static const char shim[] = "<interpreter trampoline>";
    if (take_str(name, text, &code->key.func, &hash) < 0)
        return -1;
    code->is_shim = utf8_bytes == sizeof shim - 1 && memcmp(utf8, shim, sizeof shim - 1) == 0;
    int loop_name = sonde_loop_name(utf8, utf8_bytes);
    int is_condition = sonde_condition_name(utf8, utf8_bytes);
    if (take_str((uintptr_t)copy->co_filename, text, &code->key.file, &hash) < 0 ||
        take_lines(code, (uintptr_t)copy->co_linetable, copy->co_firstlineno) < 0)
        return -1;
    code->loop_part = sonde_loop_part(loop_name, utf8, utf8_bytes);
    code->is_condition = is_condition && sonde_condition_file(utf8, utf8_bytes);
    code->key.text_hash = hash;
    code->key.first_line = copy->co_firstlineno;
    code->is_generator =
        (copy->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
    return 0;
}

static size_t size_of(const sonde_code *code)
{
    return sizeof *code + code->units * (code->is_narrow ? sizeof(uint16_t) : sizeof(int32_t));
}

/* Memory that a forked child finds empty. The child uses none of it, and where the kernel need not
 * copy it, a fork in a program with many functions takes a few per cent less. */
static void *map_room(size_t bytes)
{
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    (void)madvise(room, bytes, MADV_WIPEONFORK); /* if that fails, it is copied */
    return room;
}

static void *take_room(sonde_codes *table, size_t bytes)
{
    const size_t head = (sizeof(chunk) + 15) & ~(size_t)15;
    bytes = (bytes + 15) & ~(size_t)15;
    chunk *last = table->chunks;
    if (last == NULL || last->bytes - last->used < bytes) {
        size_t size = head + bytes > CHUNK_BYTES ? head + bytes : CHUNK_BYTES;
        last = map_room(size);
        if (last == NULL)
            return NULL;
        *last = (chunk){table->chunks, size, head};
        table->chunks = last;
    }
    last->used += bytes;
    return (char *)last + last->used - bytes;
}

/* Return a copy in the table, which takes half the room unless its lines are too far apart for that. */
static sonde_code *keep(sonde_codes *table, const sonde_code *code)
{
    int32_t low = code->key.first_line, high = low;
    for (uint32_t i = 0; i < code->units; i++) {
        low = code->lines[i] < low ? code->lines[i] : low;
        high = code->lines[i] > high ? code->lines[i] : high;
    }
    int is_narrow = (int64_t)high - low <= UINT16_MAX;
    size_t width = is_narrow ? sizeof(uint16_t) : sizeof(int32_t);
    sonde_code *kept = take_room(table, sizeof *code + code->units * width);
    if (kept == NULL)
        return NULL;
    *kept = *code;
    kept->is_narrow = is_narrow;
    kept->low_line = low;
    if (!is_narrow)
        memcpy(kept->lines, code->lines, code->units * width);
    for (uint32_t i = 0; is_narrow && i < code->units; i++)
        ((uint16_t *)kept->lines)[i] = (uint16_t)(code->lines[i] - low);
    return kept;
}

static sonde_code *read_code(sonde_codes *table, uintptr_t address, const sonde_intern_handle *text)
{
    PyCodeObject copy;
    uint32_t units;
    if (sonde_read_memory(&copy, address, sizeof copy) < 0 ||
        ((PyObject *)&copy)->ob_type != &PyCode_Type || count_units(&copy, &units) < 0)
        return NULL;
    sonde_code *code = calloc(1, sizeof *code + units * sizeof(int32_t));
    if (code == NULL)
        return NULL;
    code->address = address;
    code->units = units;
    sonde_code *kept = NULL;
    if (fill(code, &copy, text) == 0) {
        code->id = ++last_id;
        code->alive = 1;
        kept = keep(table, code);
    }
    free(code);
    return kept;
}

/* ---- the table ------------------------------------------------------------------------ */

static void free_table(sonde_codes *table)
{
    if (table == NULL)
        return;
    for (chunk *one = table->chunks, *next; one != NULL; one = next) {
        next = one->next;
        munmap(one, one->bytes);
    }
    munmap(table, sizeof *table);
}

/* Put an empty table in place of a full one. A thread of the job may be in on_death() with the
 * old one, which is therefore freed only when this happens again. */
static void renew(void)
{
    sonde_codes *fresh = map_room(sizeof *fresh);
    if (fresh == NULL)
        return;
    sonde_codes *old = codes;
    sonde_store_total(&codes, fresh);
    free_table(retired);
    retired = old;
}

void sonde_codes_clear(void)
{
    sonde_codes *old = codes;
    /* Total: whoever comes into on_death() after this finds no table. Those who are in it are there for
     * a moment only; with a GIL, which they hold as we do, there is nobody. */
    sonde_store_total(&codes, NULL);
    while (sonde_load_total(&inside) != 0)
        sched_yield();
    free_table(retired);
    free_table(old);
    retired = NULL;
}

void sonde_codes_trim(void)
{
    if (codes == NULL)
        return;
    codes->stacks++;
    if (codes->bytes >= most_bytes && codes->stacks < FEW_STACKS && most_bytes < MOST_BYTES)
        most_bytes *= 2;
    else if (codes->used >= MOST || codes->bytes >= most_bytes)
        renew();
}

void sonde_codes_forget(void)
{
    retired = codes = NULL;
    inside = 0;
}

sonde_code *sonde_codes_get(uintptr_t address, const sonde_intern_handle *text, int *fresh)
{
    if (codes == NULL)
        renew();
    if (codes == NULL || codes->used >= SLOTS - 1)
        return NULL;
    sonde_code **slot = find_slot(codes, address), *old = *slot;
    if (old != NULL && sonde_load_relaxed(&old->alive))
        return old;
    if (text == NULL)
        return NULL;
    uint64_t before = sonde_load_total(&deaths);
    sonde_code *code = read_code(codes, address, text);
    if (code == NULL)
        return NULL;
    *fresh = 1;
    codes->used++;
    codes->bytes += size_of(code);
    /* Total: the entry is stored before the count is read. A death is either counted by now, or
     * its handler finds the entry. */
    sonde_store_total(slot, code);
    if (sonde_load_total(&deaths) != before)
        sonde_store_relaxed(&code->alive, 0);
    return code;
}

#endif
