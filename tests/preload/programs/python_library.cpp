// SPDX-License-Identifier: Apache-2.0
// As much of Python's library as the recorder looks for, for an interpreter that is not initialized.
extern "C" {
#define EXPORTED __attribute__((visibility("default")))
EXPORTED char PyCode_Type, PyUnicode_Type, PyBytes_Type;
EXPORTED const char* Py_GetVersion() { return "3.12.0 (of a test)"; }
EXPORTED void* PyGILState_GetThisThreadState() { return nullptr; }
EXPORTED int Py_IsInitialized() { return 0; }
EXPORTED void* PyEval_EvalCode() { return nullptr; }
}
