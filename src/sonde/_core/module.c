/* sonde._core: the roof. It registers what the folders below offer to Python, and does nothing
 * else; nobody includes or calls this file. */
#include "attach/attach.h"
#include "calls/calls.h"
#include "collectives/collectives.h"
#include "events/events.h"
#include "exceptions/chained_hook.h"
#include "gc/gc_callback.h"
#include "heap/heap_binding.h"
#include "kernel/fork.h"
#include "spawns/spawner.h"
#include "stacks/trigger.h"
#include "torch/step_end.h"
#include "variables/array_summary.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "sonde writes little-endian files and supports x86_64 and aarch64"
#endif

static PyTypeObject *const types[] = {
    &sonde_MapType,
    &sonde_TextType,
    &sonde_WriterType,
    &sonde_NativeThreadType,
    &sonde_GcCallbackType,
    &sonde_HeapType,
    &sonde_ChainedHookType,
    &sonde_SamplerType,
    &sonde_TriggerType,
    &sonde_CallTracerType,
    &sonde_NestingCheckType,
    &sonde_CountType,
    &sonde_MarkType,
    &sonde_TorchTracerType,
    &sonde_TorchEngineType,
    &sonde_TorchGradientTimesType,
    &sonde_StepType,
    &sonde_StepsType,
    &sonde_TorchOptimizersType,
    &sonde_TorchNextType,
    &sonde_TorchMemoryType,
    &sonde_TorchStepEndType,
};

static PyMethodDef *const functions[] = {
    sonde_kernel_methods,
    sonde_reader_methods,
    sonde_tables_methods,
    sonde_control_methods,
    sonde_delayed_call_methods,
    sonde_fork_methods,
    sonde_array_summary_methods,
    sonde_locals_methods,
    sonde_running_loops_methods,
    sonde_events_methods,
    sonde_observer_methods,
    sonde_operators_methods,
    sonde_op_places_methods,
    sonde_cuda_calls_methods,
    sonde_lane_methods,
    sonde_module_call_methods,
    sonde_step_plan_methods,
    sonde_device_methods,
    sonde_collectives_methods,
    sonde_visit_methods,
    sonde_hold_threads_methods,
    sonde_still_thread_methods,
    sonde_fatal_signal_methods,
    sonde_machine_code_methods,
    sonde_spawner_methods,
};

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"STARTING", SONDE_STARTING},
    {"RUNNING", SONDE_RUNNING},
    {"STOPPED", SONDE_STOPPED},
    {"EXITED", SONDE_EXITED},
    {"FORMAT_VERSION", SONDE_FORMAT_VERSION},
    {"CONTROL_BYTES", sizeof(sonde_control)},
};

static int add_types(PyObject *core)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(core, types[i]) < 0)
            return -1;
    return sonde_region_ready(core) < 0 || PyType_Ready(&sonde_TorchGradientTimeType) < 0 ? -1 : 0;
}

static int add_functions(PyObject *core)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (PyModule_AddFunctions(core, functions[i]) < 0)
            return -1;
    return 0;
}

static int add_constants(PyObject *core)
{
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(core, constants[i].name, constants[i].value) < 0)
            return -1;
    PyObject *calls = sonde_visit_calls();
    int status = calls == NULL ? -1 : PyModule_AddObjectRef(core, "VISIT_CALLS", calls);
    Py_XDECREF(calls);
    return status < 0 ? -1 : PyModule_AddIntConstant(core, "TOTALS_BYTES", (long)sonde_totals_bytes());
}

static int add_errors(PyObject *core)
{
    return sonde_errors_make() < 0 || PyModule_AddObjectRef(core, "Damaged", sonde_Damaged) < 0 ||
           PyModule_AddObjectRef(core, "Newer", sonde_Newer) < 0;
}

static int fill_module(PyObject *core)
{
    /* There is one recording per process: its state belongs to the process, not to an
     * interpreter. */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "sonde._core works in the main interpreter only");
        return -1;
    }
    if (add_types(core) < 0 || add_functions(core) < 0 || add_constants(core) < 0 || add_errors(core))
        return -1;
    int status = sonde_fork_watch();
    if (status < 0)
        sonde_raise(status, "fork");
    return status < 0 ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sonde._core",
    .m_doc = "The part of sonde that is written in C.",
    .m_size = 0,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module); }
