#include "doors/resp_writer.hpp"

#include <charconv>

namespace millrace::kv {
namespace {

constexpr std::size_t longest_number = 20;  // of 64 bits, with its sign

}  // namespace

void RespWriter::line(char kind, std::string_view text) {
    if (!has_room(text.size() + 3)) [[unlikely]]
        return;
    out_->push_back(kind);
    out_->append(text);
    out_->append("\r\n");
}

void RespWriter::line_of(char kind, std::int64_t number) {
    char digits[longest_number];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    line(kind, {digits, static_cast<std::size_t>(end - digits)});
}

void RespWriter::error(std::string_view text) {
    ++errors_;
    constexpr std::string_view ends = "\r\n";
    text = text.substr(0, text.find_last_not_of(ends) + 1);
    if (!has_room(text.size() + 3)) [[unlikely]]
        return;
    const std::size_t begin = out_->size() + 1;
    line('-', text);
    for (std::size_t at = begin; at < begin + text.size(); ++at) {
        char& letter = (*out_)[at];
        if (letter == '\r' || letter == '\n') letter = ' ';
    }
}

void RespWriter::string(std::string_view bytes) {
    if (!has_room(bytes.size() + longest_number + 5)) [[unlikely]]
        return;
    line_of('$', static_cast<std::int64_t>(bytes.size()));
    out_->append(bytes);
    out_->append("\r\n");
}

void RespWriter::string_of(std::int64_t number) {
    char digits[longest_number];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    string({digits, static_cast<std::size_t>(end - digits)});
}

void RespWriter::text(std::string_view lines) {
    if (protocol_ != 3) return string(lines);
    line_of('=', static_cast<std::int64_t>(lines.size()) + 4);
    raw("txt:");
    raw(lines);
    raw("\r\n");
}

}  // namespace millrace::kv
