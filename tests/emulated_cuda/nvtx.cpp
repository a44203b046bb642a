// An NVTX tool that is linked into the program: it keeps the stack of open ranges of every thread.
#define NVTX_STATIC_INJECTION_IMPL
#include "nvtx.h"

#include <cstdint>
#include <vector>

// What the header looks for; it must be declared before.
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(uint32_t));
}

#include <nvtx3/nvToolsExt.h>

namespace spillway::emulated::nvtx {
namespace {

std::vector<std::string>& ranges() {
  static thread_local std::vector<std::string> open;
  return open;
}

int push(const char* name) {
  ranges().push_back(name ? name : "");
  return static_cast<int>(ranges().size()) - 1;
}

int push_described(const nvtxEventAttributes_t* range) {
  return push(range && range->messageType == NVTX_MESSAGE_TYPE_ASCII ? range->message.ascii : "");
}

int pop() {
  if (ranges().empty()) return -1;
  ranges().pop_back();
  return static_cast<int>(ranges().size());
}

int attach(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePop)
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push_described);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

}  // namespace

std::string innermost_range() { return ranges().empty() ? "" : ranges().back(); }

}  // namespace spillway::emulated::nvtx

int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(uint32_t)) = spillway::emulated::nvtx::attach;
