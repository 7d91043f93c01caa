/* From function to function in the copy of a stack, by what another process has said about their code. */
#ifndef SONDE_NATIVE_WALK_H
#define SONDE_NATIVE_WALK_H

#include "binding/binding.h" /* before all others: Python.h must be the first */
#include "format/machine_code.h"

#define SONDE_NATIVE_DEPTH 128

/* What is known of machine code: a copy of the table, by address. */
typedef struct {
    sonde_machine_table *table; /* NULL: native frames are not wanted */
    PyObject *map;
    sonde_machine_code *known;
    uint32_t entries;         /* for which there is room in `known`, whatever the file says later */
    uint32_t known_n, read_n; /* pieces of the table that have been copied */
} sonde_known_code_map;

/* Begin, with a map of a file about machine code, and end. With the GIL; opening returns 0 or -errno. */
int sonde_code_map_open(sonde_known_code_map *map, PyObject *file);
void sonde_code_map_close(sonde_known_code_map *map);

/* Copy what was said since. Allocates nothing. */
void sonde_code_map_renew(sonde_known_code_map *map);

/* Copy the next page of the stack, of which `bytes` from `sp` on are there. Returns 0 if there is none, or no room. */
int sonde_stack_bytes_extend(sonde_stack_bytes *stack);

/* Where a walk has ended. */
enum sonde_walk_end {
    SONDE_WALK_PYTHON,  /* at Python's interpreter */
    SONDE_WALK_BOTTOM,  /* at the function in which the thread began */
    SONDE_WALK_UNKNOWN, /* at code of which nothing is known: somebody should be asked */
    SONDE_WALK_ASTRAY   /* nobody can help */
};

typedef struct {
    const sonde_machine_code *code[SONDE_NATIVE_DEPTH]; /* the innermost first, without the one at which it ended */
    int depth;
    enum sonde_walk_end end;
    uint64_t unknown; /* the address, if it ended there */
} sonde_native_path;

/* Find the functions that a thread is in. `grows`: its stack stays as it is, and may be copied further. Allocates
 * nothing, and reads no memory but the copy and through system calls. */
void sonde_native_walk(const sonde_known_code_map *map, sonde_stack_bytes *stack, int grows, sonde_native_path *path);

/* Return the node of these functions below `node`, from the innermost one that is given on; 0: there is no room. */
uint32_t sonde_native_put(sonde_nodes_handle *nodes, uint32_t node, const sonde_native_path *path, int innermost);

#endif
