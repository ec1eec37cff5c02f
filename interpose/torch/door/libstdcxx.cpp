// SPDX-License-Identifier: Apache-2.0
// What a door would otherwise ask of a libstdc++ that is newer than g++ 12's. The headers of g++ 13 leave one function
// of std::string to the library, which PyTorch's own may lack when an older compiler's comes with it (as conda's does).
// An explicit instantiation puts it into the door. tests/checks/binary.py looks for others.
#include <string>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 13 && _GLIBCXX_USE_CXX11_ABI
template void std::string::_M_replace_cold(char*, size_type, const char*, const size_type, const size_type);
#endif
