// SPDX-License-Identifier: Apache-2.0
// A function that the door would otherwise need from a libstdc++ newer than that of g++ 12. The headers of g++ 13 leave
// one function of std::string to the library. The libstdc++ that PyTorch loads may be older and lack it (conda's is),
// so it is instantiated here. tests/checks/binary.py checks that no other function is needed.
#include <string>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 13 && _GLIBCXX_USE_CXX11_ABI
template void std::string::_M_replace_cold(char*, size_type, const char*, const size_type, const size_type);
#endif
