#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What options accept, said in one way: a value that is refused is quoted with what was expected.
namespace facet {

CLI::Validator not_empty();                         // of paths and keys: an empty variable of a script is no wish
CLI::Validator number_in(double low, double high);  // finite; NaN is in no range
CLI::Validator whole_number();                      // digits that fit 64 bits
CLI::Validator byte_count(uint64_t least);          // "8GB" (powers of 1024) becomes digits
CLI::Validator name_among(std::vector<std::string> names);  // whatever the case; becomes the name as it is spelled here

CLI::Validator gpu_list();  // a number of GPUs, or their own numbers: "2", "0,3"
std::optional<std::vector<int>> gpus_from(const std::string& s);
CLI::Validator share_list();  // numbers above 0: "3,2"
std::optional<std::vector<double>> shares_from(const std::string& s);

template <class E>
std::vector<std::string> names_of(const std::map<std::string, E>& names) {
  std::vector<std::string> list;
  for (const auto& [name, value] : names) list.push_back(name);
  return list;
}

// An option whose value is one of several names.
template <class T, class E>
CLI::Option* add_named(CLI::App* cmd, const std::string& flags, T& to, const std::map<std::string, E>& names,
                       const std::string& description) {
  return cmd
      ->add_option_function<std::string>(
          flags, [&to, names](const std::string& name) { to = names.at(name); }, description)
      ->transform(name_among(names_of(names)))
      ->option_text("TYPE");
}

}  // namespace facet
