// SPDX-License-Identifier: Apache-2.0
// The one list of runtime entry points: simcudart.h makes declarations of it, runtime.cpp definitions.
//
//   SIMCUDART_PLAIN(function, parameters, call)
//   SIMCUDART_WITHOUT_CONTEXT(function, parameters, call)
//   SIMCUDART_STREAM(function, suffix, parameters, call)   also `function` + `suffix`, for per-thread default streams
//
// `call` runs with the device's context current, except for SIMCUDART_WITHOUT_CONTEXT, which makes none current;
// `driver` is the table of driver functions, in the form that belongs to the entry point. No include guard: included
// once per expansion.

// clang-format off
SIMCUDART_PLAIN(cudaDriverGetVersion, (int* version), driver.driver_version(version))
SIMCUDART_PLAIN(cudaGetDeviceCount, (int* count), driver.device_count(count))
SIMCUDART_PLAIN(cudaSetDevice, (int device), set_device(driver, device))
SIMCUDART_WITHOUT_CONTEXT(cudaGetDevice, (int* device), current_device(driver, device))
SIMCUDART_PLAIN(cudaDeviceSynchronize, (), driver.context_synchronize())
SIMCUDART_PLAIN(cudaDeviceReset, (), reset_device(driver))
SIMCUDART_PLAIN(cudaDeviceCanAccessPeer, (int* can, int device, int peer), driver.device_can_access_peer(can, device, peer))
SIMCUDART_PLAIN(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), enable_peer(driver, peer, flags))

SIMCUDART_PLAIN(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest), driver.context_priority_range(least, greatest))
SIMCUDART_PLAIN(cudaGetDeviceProperties, (void* properties, int device), device_properties(driver, properties, device))
SIMCUDART_PLAIN(cudaGetDeviceProperties_v2, (void* properties, int device), device_properties(driver, properties, device))
SIMCUDART_PLAIN(cudaGetDriverEntryPoint, (const char* symbol, void** function, unsigned long long flags, int* status), entry_point(driver, symbol, function, simcuda::kDriverVersion, flags, status))
SIMCUDART_PLAIN(cudaGetDriverEntryPointByVersion, (const char* symbol, void** function, unsigned version, unsigned long long flags, int* status), entry_point(driver, symbol, function, static_cast<int>(version), flags, status))

SIMCUDART_PLAIN(cudaMalloc, (void** memory, size_t bytes), allocate(memory, bytes, [&](CUdeviceptr* at) { return driver.memory_alloc(at, bytes); }))
SIMCUDART_PLAIN(cudaFree, (void* memory), driver.memory_free(address(memory)))
SIMCUDART_PLAIN(cudaMallocHost, (void** memory, size_t bytes), driver.host_alloc(memory, bytes, 0))
SIMCUDART_PLAIN(cudaHostAlloc, (void** memory, size_t bytes, unsigned flags), driver.host_alloc(memory, bytes, flags))
SIMCUDART_PLAIN(cudaFreeHost, (void* memory), driver.host_free(memory))
SIMCUDART_PLAIN(cudaMemGetInfo, (size_t* free_bytes, size_t* total_bytes), driver.memory_info(free_bytes, total_bytes))
SIMCUDART_PLAIN(cudaIpcGetMemHandle, (cudaIpcMemHandle_t* handle, void* memory), driver.ipc_get_handle(handle, address(memory)))
SIMCUDART_PLAIN(cudaIpcOpenMemHandle, (void** memory, cudaIpcMemHandle_t handle, unsigned flags), refuse(memory, handle, flags))
SIMCUDART_PLAIN(cudaIpcCloseMemHandle, (void* memory), refuse(memory))
SIMCUDART_STREAM(cudaMallocAsync, _ptsz, (void** memory, size_t bytes, cudaStream_t stream), allocate(memory, bytes, [&](CUdeviceptr* at) { return driver.alloc_async(at, bytes, stream); }))
SIMCUDART_STREAM(cudaMallocFromPoolAsync, _ptsz, (void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), allocate(memory, bytes, [&](CUdeviceptr* at) { return driver.alloc_from_pool_async(at, bytes, pool, stream); }))
SIMCUDART_STREAM(cudaFreeAsync, _ptsz, (void* memory, cudaStream_t stream), driver.free_async(address(memory), stream))

SIMCUDART_PLAIN(cudaDeviceGetDefaultMemPool, (cudaMemPool_t* pool, int device), driver.device_default_pool(pool, device))
SIMCUDART_PLAIN(cudaDeviceGetMemPool, (cudaMemPool_t* pool, int device), driver.device_get_pool(pool, device))
SIMCUDART_PLAIN(cudaDeviceSetMemPool, (int device, cudaMemPool_t pool), driver.device_set_pool(device, pool))
SIMCUDART_PLAIN(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value), driver.pool_get_attribute(pool, static_cast<CUmemPool_attribute>(attribute), value))
SIMCUDART_PLAIN(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value), driver.pool_set_attribute(pool, static_cast<CUmemPool_attribute>(attribute), value))
SIMCUDART_PLAIN(cudaMemPoolSetAccess, (cudaMemPool_t pool, const CUmemAccessDesc* access, size_t count), driver.pool_set_access(pool, access, count))
SIMCUDART_PLAIN(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), driver.pool_trim(pool, keep))

SIMCUDART_PLAIN(cudaStreamCreate, (cudaStream_t* stream), driver.stream_create(stream, CU_STREAM_DEFAULT))
SIMCUDART_PLAIN(cudaStreamCreateWithFlags, (cudaStream_t* stream, unsigned flags), driver.stream_create(stream, flags))
SIMCUDART_PLAIN(cudaStreamCreateWithPriority, (cudaStream_t* stream, unsigned flags, int priority), driver.stream_create_priority(stream, flags, priority))
SIMCUDART_PLAIN(cudaStreamDestroy, (cudaStream_t stream), driver.stream_destroy(stream))
SIMCUDART_STREAM(cudaStreamSynchronize, _ptsz, (cudaStream_t stream), driver.stream_synchronize(stream))
SIMCUDART_STREAM(cudaStreamQuery, _ptsz, (cudaStream_t stream), driver.stream_query(stream))
SIMCUDART_STREAM(cudaStreamWaitEvent, _ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned flags), driver.stream_wait_event(stream, event, flags))
SIMCUDART_STREAM(cudaLaunchHostFunc, _ptsz, (cudaStream_t stream, cudaHostFn_t function, void* data), driver.launch_host(stream, function, data))

SIMCUDART_PLAIN(cudaEventCreate, (cudaEvent_t* event), driver.event_create(event, CU_EVENT_DEFAULT))
SIMCUDART_PLAIN(cudaEventCreateWithFlags, (cudaEvent_t* event, unsigned flags), driver.event_create(event, flags))
SIMCUDART_PLAIN(cudaEventDestroy, (cudaEvent_t event), driver.event_destroy(event))
SIMCUDART_PLAIN(cudaEventQuery, (cudaEvent_t event), driver.event_query(event))
SIMCUDART_PLAIN(cudaEventSynchronize, (cudaEvent_t event), driver.event_synchronize(event))
SIMCUDART_PLAIN(cudaEventElapsedTime, (float* milliseconds, cudaEvent_t start, cudaEvent_t end), driver.event_elapsed(milliseconds, start, end))
SIMCUDART_STREAM(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream), driver.event_record(event, stream))

SIMCUDART_STREAM(cudaMemcpy, _ptds, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), copy(driver, to, from, bytes, kind))
SIMCUDART_STREAM(cudaMemcpyAsync, _ptsz, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream), copy_async(driver, to, from, bytes, kind, stream))
SIMCUDART_PLAIN(cudaMemcpyPeerAsync, (void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream), copy_between(driver, to, to_device, from, from_device, bytes, stream))
SIMCUDART_STREAM(cudaMemset, _ptds, (void* to, int value, size_t bytes), driver.fill8(address(to), static_cast<unsigned char>(value), bytes))
SIMCUDART_STREAM(cudaMemsetAsync, _ptsz, (void* to, int value, size_t bytes, cudaStream_t stream), driver.fill8_async(address(to), static_cast<unsigned char>(value), bytes, stream))

SIMCUDART_STREAM(cudaStreamBeginCapture, _ptsz, (cudaStream_t stream, cudaStreamCaptureMode mode), driver.capture_begin(stream, static_cast<CUstreamCaptureMode>(mode)))
SIMCUDART_STREAM(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t* graph), driver.capture_end(stream, graph))
SIMCUDART_STREAM(cudaStreamIsCapturing, _ptsz, (cudaStream_t stream, cudaStreamCaptureStatus* status), driver.capture_status(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)))
SIMCUDART_PLAIN(cudaStreamGetCaptureInfo, (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const CUgraphNode** nodes, const void** edges, size_t* count), capture_info(driver, stream, status, id, graph, nodes, edges, count))
SIMCUDART_PLAIN(cudaStreamGetCaptureInfo_v2, (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const CUgraphNode** nodes, size_t* count), capture_info(driver, stream, status, id, graph, nodes, nullptr, count))
SIMCUDART_WITHOUT_CONTEXT(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode* mode), driver.capture_exchange_mode(reinterpret_cast<CUstreamCaptureMode*>(mode)))
SIMCUDART_PLAIN(cudaGraphInstantiate, (cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags), driver.graph_instantiate(executable, graph, flags))
SIMCUDART_STREAM(cudaGraphLaunch, _ptsz, (cudaGraphExec_t executable, cudaStream_t stream), driver.graph_launch(executable, stream))
SIMCUDART_PLAIN(cudaGraphDestroy, (cudaGraph_t graph), driver.graph_destroy(graph))
SIMCUDART_PLAIN(cudaGraphExecDestroy, (cudaGraphExec_t executable), driver.graph_exec_destroy(executable))
// A graph has no nodes that a program could look at.
SIMCUDART_PLAIN(cudaStreamUpdateCaptureDependencies, (cudaStream_t stream, CUgraphNode* nodes, size_t count, unsigned flags), refuse(stream, nodes, count, flags))
SIMCUDART_PLAIN(cudaGraphAddEmptyNode, (CUgraphNode* node, cudaGraph_t graph, const CUgraphNode* nodes, size_t count), refuse(node, graph, nodes, count))
SIMCUDART_PLAIN(cudaGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode* nodes, void* edges, size_t* count), refuse(node, nodes, edges, count))
SIMCUDART_PLAIN(cudaGraphNodeGetType, (CUgraphNode node, int* type), refuse(node, type))
SIMCUDART_PLAIN(cudaDeviceGetGraphMemAttribute, (int device, int attribute, void* value), refuse(device, attribute, value))
SIMCUDART_PLAIN(cudaDeviceSetGraphMemAttribute, (int device, int attribute, void* value), refuse(device, attribute, value))
// clang-format on
