/* A pretended driver of CUDA with two devices, and NCCL's flight recorder: they note what they are asked. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *at;
    size_t bytes;
    char small[16];
} string;

static int active = -1;
static char notes[4096];

static int note(const char *what, int number)
{
    size_t used = strlen(notes);
    snprintf(notes + used, sizeof notes - used, "%s %d\n", what, number);
    return 0;
}

void activate(int device)
{
    active = device;
    notes[0] = 0;
}

const char *read_notes(void) { return notes; }

int cuDeviceGetCount(int *count)
{
    *count = 2;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active)
{
    *flags = 0;
    *is_active = device == active;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = notes + device;
    return note("retain", device);
}

int cuCtxSetCurrent(void *context) { return note("use", (int)((char *)context - notes)); }
int cuThreadExchangeStreamCaptureMode(int *mode) { return note("mode", *mode); }

/* The runtime's own call makes a context on device 0. */
int cudaThreadExchangeStreamCaptureMode(int *mode) { return note("made a context", *mode); }

/* Of the recorder: the pickle of {"entries": [], "version": "2.0"}. */
static const char empty[] = "\x80\x02}q\0(X\7\0\0\0entriesq\1]q\2(eX\7\0\0\0versionq\3X\3\0\0\0002.0q\4u.";

string dump(bool collectives, bool stacks, bool is_active) __asm__("_ZN4c10d15dump_nccl_traceB5cxx11Ebbb");
string dump(bool collectives, bool stacks, bool is_active)
{
    string answer = {.at = malloc(sizeof empty), .bytes = sizeof empty - 1};
    (void)collectives, (void)stacks, (void)is_active;
    memcpy(answer.at, empty, sizeof empty);
    note("asked", 1);
    return answer;
}

void drop(void *memory) __asm__("_ZdlPv");
void drop(void *memory) { free(memory); }
