/* Copies rows from a mapped ring to buffers that Arrow takes as they are. */
#include "binding/binding.h"

#include <string.h>

static void set_bit(char *bits, uint64_t at) { bits[at >> 3] |= (char)(1 << (at & 7)); }

typedef struct {
    char *data[SONDE_MAX_COLUMNS];
    char *valid[SONDE_MAX_COLUMNS]; /* NULL: the column is never NULL */
    uint64_t *tickets;              /* NULL if they were not asked for */
    int places;                     /* texts as positions (id - 1) in a dictionary, not as ids */
    uint32_t top_text;              /* the largest text id seen */
    uint64_t rows, lost, pending, corrupt;
} sonde_batch;

/* Rows are collected in blocks and then split into columns: tight loops over one kind of value,
 * in memory that is still in the cache. */
enum { BLOCK = 64 };

typedef struct {
    uint64_t words[BLOCK * (SONDE_MAX_ROW_BYTES / 8)]; /* rows of row_bytes / 8 words, packed */
    uint32_t nulls[BLOCK];
    uint32_t rows;
} sonde_block;

static void take_texts(const char *from, uint32_t stride, uint32_t rows, int column, sonde_batch *to)
{
    uint32_t *ids = (uint32_t *)to->data[column] + to->rows;
    for (uint32_t i = 0; i < rows; i++, from += stride) {
        uint32_t id;
        memcpy(&id, from, sizeof id);
        if (id > to->top_text)
            to->top_text = id;
        if (!to->places) {
            ids[i] = id;
            continue;
        }
        ids[i] = id ? id - 1 : 0;
        if (id)
            set_bit(to->valid[column], to->rows + i);
    }
}

static void take_column(const sonde_row_layout *layout, const sonde_block *block, int column,
                        sonde_batch *to)
{
    const char *from = (const char *)block->words + layout->offset[column];
    uint32_t stride = layout->row_bytes, rows = block->rows;
    char *data = to->data[column];
    switch (layout->kind[column]) {
    case 't': take_texts(from, stride, rows, column, to); break;
    case 'q': case 'Q': case 'd':
        for (uint32_t i = 0; i < rows; i++, from += stride)
            memcpy(data + (to->rows + i) * 8, from, 8);
        break;
    case 'i': case 'I':
        for (uint32_t i = 0; i < rows; i++, from += stride)
            memcpy(data + (to->rows + i) * 4, from, 4);
        break;
    case 'h': case 'H':
        for (uint32_t i = 0; i < rows; i++, from += stride)
            memcpy(data + (to->rows + i) * 2, from, 2);
        break;
    case '?':
        for (uint32_t i = 0; i < rows; i++, from += stride)
            if (*from)
                set_bit(data, to->rows + i);
        break;
    default:
        for (uint32_t i = 0; i < rows; i++, from += stride)
            data[to->rows + i] = *from;
    }
}

static void take_block(const sonde_row_layout *layout, sonde_block *block, sonde_batch *to)
{
    for (int i = 0; i < layout->columns; i++) {
        take_column(layout, block, i, to);
        int bit = layout->null_bit[i];
        if (bit < 0 || (layout->kind[i] == 't' && to->places))
            continue;
        for (uint32_t row = 0; row < block->rows; row++)
            if (!(block->nulls[row] >> bit & 1))
                set_bit(to->valid[i], to->rows + row);
    }
    to->rows += block->rows;
    block->rows = 0;
}

static void read_rows(const sonde_ring_handle *ring, const sonde_row_layout *layout, uint64_t first,
                      uint64_t last, sonde_batch *to)
{
    sonde_block block;
    uint32_t words = layout->row_bytes / 8;
    block.rows = 0;
    for (uint64_t ticket = first; ticket < last; ticket++) {
        uint32_t at = block.rows;
        switch (sonde_ring_get(ring, ticket, &block.words[at * words], &block.nulls[at])) {
        case SONDE_ROW_OK:
            if (to->tickets != NULL)
                to->tickets[to->rows + at] = ticket;
            if (++block.rows == BLOCK)
                take_block(layout, &block, to);
            break;
        case SONDE_ROW_LOST: to->lost++; break;
        case SONDE_ROW_PENDING: to->pending++; break;
        case SONDE_ROW_CORRUPT: to->corrupt++; break;
        }
    }
    take_block(layout, &block, to);
}

/* Open the ring in a map. 0, or -1 with an exception. */
static int open_ring(PyObject *map, int writable, sonde_ring_handle *ring)
{
    const void *mem = sonde_map_memory(map, writable);
    if (mem == NULL)
        return -1;
    int status = sonde_ring_open(ring, mem, ((MapObject *)map)->bytes);
    if (status < 0)
        sonde_raise(status, "ring");
    return status < 0 ? -1 : 0;
}

static int make_buffers(const sonde_row_layout *layout, uint64_t rows, PyObject *columns,
                        sonde_batch *batch)
{
    uint64_t bits = (rows + 7) / 8;
    for (int i = 0; i < layout->columns; i++) {
        int is_bits = layout->kind[i] == '?';
        uint64_t bytes = is_bits ? bits : rows * sonde_kind_bytes(layout->kind[i]);
        batch->data[i] = sonde_append_buffer(columns, bytes, is_bits);
        if (batch->data[i] == NULL)
            return -1;
        if (layout->null_bit[i] < 0 && !(layout->kind[i] == 't' && batch->places)) {
            if (PyList_Append(columns, Py_None) < 0)
                return -1;
        } else if ((batch->valid[i] = sonde_append_buffer(columns, bits, 1)) == NULL) {
            return -1;
        }
    }
    return 0;
}

static PyObject *ring_read(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    const char *kinds, *optional;
    unsigned long long first, last;
    int tickets = 0, places = 0;
    if (!PyArg_ParseTuple(args, "O!ssKK|pp", &sonde_MapType, &map, &kinds, &optional, &first, &last,
                          &tickets, &places))
        return NULL;
    sonde_ring_handle ring;
    sonde_row_layout layout;
    if (open_ring(map, 0, &ring) < 0 || sonde_row_layout_make(&layout, kinds, optional) < 0)
        return NULL;
    if (layout.row_bytes != ring.row_bytes)
        return sonde_raise(-EBADMSG, "ring");
    sonde_batch batch = {.places = places};
    uint64_t head = sonde_load_acquire(&ring.shared->head);
    if (last > head)
        last = head;
    if (last < first)
        last = first;
    uint64_t reach = sonde_ring_reach(&ring);
    if (last - first > reach) {
        batch.lost = last - first - reach;
        first = last - reach;
    }
    PyObject *columns = PyList_New(0);
    if (columns == NULL)
        return NULL;
    if (make_buffers(&layout, last - first, columns, &batch) < 0 ||
        (tickets &&
         (batch.tickets = (uint64_t *)sonde_append_buffer(columns, (last - first) * 8, 0)) == NULL)) {
        Py_DECREF(columns);
        return NULL;
    }
    Py_INCREF(map);
    Py_BEGIN_ALLOW_THREADS
    read_rows(&ring, &layout, first, last, &batch);
    Py_END_ALLOW_THREADS
    Py_DECREF(map);
    return Py_BuildValue("KNKKKI", (unsigned long long)batch.rows, columns,
                         (unsigned long long)batch.lost, (unsigned long long)batch.pending,
                         (unsigned long long)batch.corrupt, batch.top_text);
}

static PyObject *wall_us(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *times;
    Py_ssize_t rows;
    long long offset_ns;
    if (!PyArg_ParseTuple(args, "O!nL", &PyByteArray_Type, &times, &rows, &offset_ns))
        return NULL;
    if (rows < 0 || rows > PyByteArray_GET_SIZE(times) / 8) {
        PyErr_SetString(PyExc_ValueError, "more rows than times");
        return NULL;
    }
    PyObject *result = PyByteArray_FromStringAndSize(NULL, rows * 8);
    if (result == NULL)
        return NULL;
    const char *from = PyByteArray_AS_STRING(times);
    char *to = PyByteArray_AS_STRING(result);
    for (Py_ssize_t i = 0; i < rows; i++) {
        int64_t wall;
        memcpy(&wall, from + i * 8, 8);
        /* Added as unsigned numbers: a damaged time must not cause undefined behaviour. */
        wall = (int64_t)((uint64_t)wall + (uint64_t)offset_ns) / 1000;
        memcpy(to + i * 8, &wall, 8);
    }
    return result;
}

static PyObject *ring_info(PyObject *Py_UNUSED(module), PyObject *map)
{
    sonde_ring_handle ring;
    if (open_ring(map, 0, &ring) < 0)
        return NULL;
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:I,s:K,s:K,s:K,s:K,s:y#}", "capacity", (unsigned long long)ring.capacity,
        "spare", (unsigned long long)ring.spare, "reach", (unsigned long long)sonde_ring_reach(&ring),
        "row_bytes", ring.row_bytes, "head", (unsigned long long)sonde_load_acquire(&ring.shared->head),
        "dropped", (unsigned long long)sonde_load_relaxed(&ring.shared->dropped), "misfit",
        (unsigned long long)sonde_load_relaxed(&ring.shared->misfit), "text_lost",
        (unsigned long long)sonde_load_relaxed(&ring.shared->text_lost), "schema",
        (const char *)(ring.shared + 1), (Py_ssize_t)ring.schema_bytes);
}

static PyObject *ring_settled(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long first;
    if (!PyArg_ParseTuple(args, "O!K", &sonde_MapType, &map, &first))
        return NULL;
    sonde_ring_handle ring;
    if (open_ring(map, 0, &ring) < 0)
        return NULL;
    uint64_t head = sonde_load_acquire(&ring.shared->head);
    if (first > head)
        first = head;
    if (head - first > sonde_ring_reach(&ring))
        first = head - sonde_ring_reach(&ring);
    return PyLong_FromUnsignedLongLong(sonde_ring_settled(&ring, first, head));
}

static PyObject *ring_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long capacity;
    unsigned int row_bytes, schema_bytes;
    if (!PyArg_ParseTuple(args, "KII", &capacity, &row_bytes, &schema_bytes))
        return NULL;
    return PyLong_FromUnsignedLongLong(sonde_ring_bytes(capacity, row_bytes, schema_bytes));
}

static PyObject *ring_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long capacity;
    unsigned int row_bytes;
    const char *schema;
    Py_ssize_t schema_bytes;
    if (!PyArg_ParseTuple(args, "O!KIy#", &sonde_MapType, &map, &capacity, &row_bytes, &schema,
                          &schema_bytes))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    int status = sonde_ring_init(mem, ((MapObject *)map)->bytes, capacity, row_bytes, schema,
                                 (uint32_t)schema_bytes);
    if (status < 0)
        return sonde_raise(status, "ring");
    Py_RETURN_NONE;
}

static PyObject *ring_add_spare(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long spare;
    if (!PyArg_ParseTuple(args, "O!K", &sonde_MapType, &map, &spare))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    int status = sonde_ring_add_spare(mem, ((MapObject *)map)->bytes, spare);
    if (status < 0)
        return sonde_raise(status, "ring");
    Py_RETURN_NONE;
}

static PyObject *ring_archived(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long archived;
    sonde_ring_handle ring;
    if (!PyArg_ParseTuple(args, "O!K", &sonde_MapType, &map, &archived) || open_ring(map, 1, &ring) < 0)
        return NULL;
    /* Relaxed: it only decides where new rows go. */
    sonde_store_relaxed(&ring.shared->archived, archived);
    Py_RETURN_NONE;
}

static PyObject *ring_free_slots(PyObject *Py_UNUSED(module), PyObject *map)
{
    sonde_ring_handle ring;
    if (open_ring(map, 1, &ring) < 0)
        return NULL;
    sonde_ring_free_slots(&ring);
    Py_RETURN_NONE;
}

static PyObject *layout_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *kinds, *optional;
    sonde_row_layout layout;
    if (!PyArg_ParseTuple(args, "ss", &kinds, &optional) ||
        sonde_row_layout_make(&layout, kinds, optional) < 0)
        return NULL;
    return PyLong_FromUnsignedLong(layout.row_bytes);
}

PyMethodDef sonde_reader_methods[] = {
    {"layout_bytes", layout_bytes, METH_VARARGS, "layout_bytes(kinds, optional): return the size of a row."},
    {"ring_bytes", ring_bytes, METH_VARARGS,
     "ring_bytes(capacity, row_bytes, schema_bytes): return the size of the file; 0 if the\n"
     "numbers are impossible."},
    {"ring_init", ring_init, METH_VARARGS, "ring_init(map, capacity, row_bytes, schema)."},
    {"ring_add_spare", ring_add_spare, METH_VARARGS,
     "ring_add_spare(map, slots): use the memory behind a new ring while nobody archives its rows."},
    {"ring_archived", ring_archived, METH_VARARGS,
     "ring_archived(map, ticket): tell the writers that the rows before this one are archived."},
    {"ring_info", ring_info, METH_O, "ring_info(map): return the numbers in the ring's header, and its schema."},
    {"ring_read", ring_read, METH_VARARGS,
     "ring_read(map, kinds, optional, first, last, tickets=False, places=False):\n"
     "(rows, [data, valid, data, valid, …], lost, pending, corrupt, largest text id).\n"
     "Texts are ids, or with `places` positions in a dictionary of all texts."},
    {"wall_us", wall_us, METH_VARARGS,
     "wall_us(times, rows, offset_ns): add an offset to nanoseconds, and return microseconds."},
    {"ring_settled", ring_settled, METH_VARARGS,
     "ring_settled(map, first): return the first ticket from `first` on whose row is not complete."},
    {"ring_free_slots", ring_free_slots, METH_O, "ring_free_slots(map): free the slots that dead writers left busy."},
    {NULL, NULL, 0, NULL},
};
