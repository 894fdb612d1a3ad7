// Numbers and output for people and for scripts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace runmax::cli {

std::string bytes_text(double bytes);      // "12.0 MiB"
std::string count_text(double count);      // "100.7 M"
std::string seconds_text(double seconds);  // "3.10 ms"

// To standard output. Throws Error if that fails; a reader that has gone away is no error.
void print(std::string_view text);
void print_json(const nlohmann::ordered_json& json);

}  // namespace runmax::cli
