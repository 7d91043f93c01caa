/* Calls of CUDA's runtime that torch makes: what cuda_calls.c sees, cuda_rows.c writes. */
#ifndef SONDE_CUDA_CALLS_H
#define SONDE_CUDA_CALLS_H

#include "torch/torch.h"
#include "kernel/instant.h"

/* X(name, kind) of each call that is seen. */
#define SONDE_CUDA_CALLS(X) \
    X(cudaDeviceSynchronize, SYNCHRONIZE) \
    X(cudaStreamSynchronize, SYNCHRONIZE) \
    X(cudaEventSynchronize, SYNCHRONIZE) \
    X(cudaMemcpy, COPY) \
    X(cudaMemcpyAsync, COPY) \
    X(cudaMemcpy2DAsync, COPY) \
    X(cudaMemcpyPeerAsync, COPY) \
    X(cudaMalloc, ALLOCATE) \
    X(cudaMallocAsync, ALLOCATE) \
    X(cudaHostAlloc, ALLOCATE) \
    X(cudaHostRegister, ALLOCATE) \
    X(cudaFree, FREE) \
    X(cudaFreeAsync, FREE) \
    X(cudaFreeHost, FREE) \
    X(cudaHostUnregister, FREE) \
    X(cudaLaunchKernel, LAUNCH) \
    X(__cudaLaunchKernel, LAUNCH) \
    X(cudaLaunchKernelExC, LAUNCH) \
    X(cudaGraphLaunch, LAUNCH)

enum sonde_cuda_kind {
    SONDE_CUDA_SYNCHRONIZE,
    SONDE_CUDA_COPY,
    SONDE_CUDA_ALLOCATE,
    SONDE_CUDA_FREE,
    SONDE_CUDA_LAUNCH,
    SONDE_CUDA_KINDS
};

#define SONDE_CUDA_NUMBER(name, kind) SONDE_CUDA_##name,
enum sonde_cuda_call { SONDE_CUDA_CALLS(SONDE_CUDA_NUMBER) SONDE_CUDA_CALLS_N };

enum { SONDE_CUDA_TO_DEVICE = 1, SONDE_CUDA_TO_HOST = 2, SONDE_CUDA_DIRECTIONS = 5 };

typedef struct {
    enum sonde_cuda_call call;
    sonde_instant end; /* now, or a moment ago */
    int64_t dur_ns;
    int64_t bytes;   /* -1: none */
    int direction;   /* -1: it copies nothing */
    int is_pinned;   /* of the host's memory; -1: not known */
    int has_stream;
    void *stream;
} sonde_cuda_seen;

/* Is anybody interested? Any thread, as all of these, with or without the GIL. */
int sonde_cuda_is_on(void);
void sonde_cuda_note(const sonde_cuda_seen *seen);
void sonde_cuda_count(enum sonde_cuda_call call); /* a launch */

/* Where rows go; with the GIL. `folder` is torch's own, which ends with a slash. */
int sonde_cuda_rows_start(PyObject *writer, PyObject *text, PyObject *page, const char *folder, void *runtime);
void sonde_cuda_rows_stop(void);
void sonde_cuda_rows_flush(void);

#endif
