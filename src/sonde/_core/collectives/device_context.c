/* The CUDA context in which NCCL's flight recorder is asked.
 *
 * The recorder queries events of the device. A new thread that uses CUDA's runtime gets a context on
 * device 0, and one is made if there is none: hundreds of MB there for every rank, and in programs
 * that use no GPU at all. The driver is asked for a context that the program has made, and makes
 * none itself. */
#include "collectives/collectives.h"

#include <dlfcn.h>

enum { RELAXED = 2 };

typedef struct {
    int (*count)(int *);
    int (*state)(int device, unsigned *flags, int *is_active);
    int (*retain)(void **context, int device);
    int (*use)(void *context);
    int (*set_mode)(int *mode);
} driver_calls;

/* The driver's library; NULL as long as nobody has loaded it. */
static void *find_library(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library != NULL)
        dlclose(library); /* the program keeps it */
    return library;
}

static int find_calls(void *library, driver_calls *calls)
{
    *(void **)&calls->count = dlsym(library, "cuDeviceGetCount");
    *(void **)&calls->state = dlsym(library, "cuDevicePrimaryCtxGetState");
    *(void **)&calls->retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&calls->use = dlsym(library, "cuCtxSetCurrent");
    *(void **)&calls->set_mode = dlsym(library, "cuThreadExchangeStreamCaptureMode");
    return calls->count && calls->state && calls->retain && calls->use && calls->set_mode;
}

/* The first device on which the program has a context, or -1. Fails without a trace as long as nobody has
 * initialised the driver. */
static int find_device(const driver_calls *calls)
{
    int devices = 0, is_active = 0;
    unsigned flags;
    if (calls->count(&devices) != 0)
        return -1;
    for (int device = 0; device < devices; device++)
        if (calls->state(device, &flags, &is_active) == 0 && is_active)
            return device;
    return -1;
}

int sonde_device_context_enter(void)
{
    static __thread int is_entered;
    driver_calls calls;
    void *library = is_entered ? NULL : find_library();
    if (library == NULL || !find_calls(library, &calls))
        return is_entered;
    int device = find_device(&calls), mode = RELAXED;
    void *context = NULL;
    if (device < 0 || calls.retain(&context, device) != 0 || calls.use(context) != 0)
        return 0;
    /* While the program captures a CUDA graph, a query of an event would spoil the capture, unless
     * the thread that makes it has set this mode. */
    is_entered = calls.set_mode(&mode) == 0;
    return is_entered;
}
