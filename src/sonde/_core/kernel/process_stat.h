/* What /proc says about a process. */
#ifndef SONDE_PROCESS_STAT_H
#define SONDE_PROCESS_STAT_H

#include <stddef.h>

/* The fields of /proc/PID/stat after the name, in its order; see proc(5), which counts from 3. */
enum {
    SONDE_STAT_STATE = 0,
    SONDE_STAT_PARENT = 1,
    SONDE_STAT_SMALL_FAULTS = 7,
    SONDE_STAT_REAPED_FAULTS = 8,
    SONDE_STAT_FAULTS = 9,
    SONDE_STAT_USER = 11,
    SONDE_STAT_SYSTEM = 12,
    SONDE_STAT_THREADS = 17,
    SONDE_STAT_START = 19,
    SONDE_STAT_VMS = 20,
    SONDE_STAT_RSS = 21,
    SONDE_STAT_FIELDS = 22,
};

/* The lines of /proc/PID/io, in its order. */
enum {
    SONDE_IO_RCHAR = 0,
    SONDE_IO_WCHAR = 1,
    SONDE_IO_READ_BYTES = 4,
    SONDE_IO_WRITE_BYTES = 5,
    SONDE_IO_LINES = 6,
};

typedef struct {
    long long now_ns;  /* when it was read */
    long long cpu_ns;  /* the CPU time up to then, with ended threads; -1: not known */
    const char *name;  /* in `text` */
    size_t name_bytes;
    long long field[SONDE_STAT_FIELDS];
    int has_io; /* 0: we may not read it */
    long long io[SONDE_IO_LINES];
    char text[1024];
} sonde_process_stat;

/* Read about a process through its open files of /proc (`io_fd` may be -1). Returns 0; 1 if its
 * CPU time is still `known_ns` (then only now_ns and cpu_ns are filled in); or -errno. */
int sonde_process_read(int pid, int stat_fd, int io_fd, long long known_ns, sonde_process_stat *to);

/* Has this process so much memory of its own that a copy of it would take long? */
int sonde_is_large(void);

#endif
