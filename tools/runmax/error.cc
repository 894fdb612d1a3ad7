#include "error.h"

#include <new>

namespace runmax::cli {
namespace {

// Length of the UTF-8 character at the start of `text`; 0 if there is none. Overlong forms and
// surrogates do not count.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if (first == 0xE0 && second < 0xA0) return 0;
  if (first == 0xED && second > 0x9F) return 0;
  if (first == 0xF0 && second < 0x90) return 0;
  if (first == 0xF4 && second > 0x8F) return 0;
  return length;
}

}  // namespace

void require(runmax_status status) {
  if (status == RUNMAX_OK) return;
  if (status == RUNMAX_OUT_OF_MEMORY) throw std::bad_alloc();
  throw Error(status == RUNMAX_UNSUPPORTED ? kExitUnsupported : kExitBadInput, runmax_last_error());
}

std::string printable(std::string_view text, size_t longest) {
  std::string result;
  while (!text.empty() && result.size() < longest) {
    const size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    // C1 controls (U+0080..U+009F), and the separators U+2028 and U+2029, also break lines.
    const bool unsafe =
        length == 0 || first < 0x20 || first == 0x7F ||
        (first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) ||
        (length == 3 && (text.substr(0, 3) == "\u2028" || text.substr(0, 3) == "\u2029"));
    const size_t taken = length == 0 ? 1 : length;
    if (unsafe) {
      for (size_t i = 0; i < taken; ++i) {
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      }
    } else {
      result += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  if (!text.empty()) result += "...";
  return result;
}

}  // namespace runmax::cli
