# Makes a C++ file of the snippets in documents (```cpp) and at the head of headers (lines that begin
# with "//     " before #pragma once), so that a compiler sees each as a reader would paste it. Called
# by tests/snippets/CMakeLists.txt: awk -v around=flow.hpp -v output=flow.cpp -f generate.awk FILES
#
# What is declared in a snippet stands in a namespace of its own within `around`, its statements in a function, which
# is a coroutine where they await. "…" is nothing, at the end of a line an empty block. A specialisation stands in the global namespace.

function emit(text) { print text > output }
function at_line(number) { emit("#line " number " \"" FILENAME "\"") }

function count(text, character, copy) {
    copy = text
    return gsub(character, "", copy)
}

function begin_snippet() {
    begins_at = FNR
    statements = declarations = specialisations = ""
    kind = "statements"
    depth = 0
}

# A line of the snippet, with what says where it stands.
function take(line, said) {
    if (line ~ /…( *\/\/.*)?$/) sub(/…( *\/\/.*)?$/, "{}", line)
    gsub(/…/, "", line)
    if (depth == 0 && kind == "statements") {
        if (line ~ /^template <>/) kind = "specialisation"
        else if (line ~ /^(struct|base::Task<)/) kind = "declaration"
    }
    said = "#line " FNR " \"" FILENAME "\"\n" line "\n"
    if (kind == "specialisation") specialisations = specialisations said
    else if (kind == "declaration") declarations = declarations said
    else statements = statements said
    if (line ~ /co_await/ && kind == "statements") awaits = 1
    sub(/\/\/.*/, "", line)
    depth += count(line, "{") - count(line, "}")
    if (depth == 0 && line ~ /}/) kind = "statements"
}

function end_snippet(name) {
    name = FILENAME
    sub(/.*\/(docs|include\/millrace)\//, "", name)
    sub(/.*\//, "", name)
    gsub(/[^A-Za-z0-9]/, "_", name)
    name = name "_" begins_at
    if (specialisations != "") emit(specialisations)
    emit("namespace around::" name " {")
    if (declarations != "") emit(declarations)
    if (statements != "") {
        emit((awaits ? "base::Task<>" : "void") " snippet() {\n" statements "}")
    }
    emit("}  // namespace around::" name)
    awaits = 0
    ++snippets
    is_within = 0
}

BEGIN { emit("#include \"" around "\"") }
FNR == 1 { is_header = FILENAME ~ /\.hpp$/; is_over = is_within = 0 }

!is_header && /^```cpp$/ { begin_snippet(); is_within = 1; next }
!is_header && /^```$/ && is_within { end_snippet(); next }
!is_header && is_within { take($0) }

is_header && is_over { next }
is_header && /^#pragma once/ {
    if (is_within) end_snippet()
    is_over = 1
    next
}
# A drawing begins with fewer blanks, or more.
is_header && /^\/\/     / && (is_within || substr($0, 8, 1) != " ") {
    if (!is_within) begin_snippet()
    is_within = 1
    take(substr($0, 8))
    next
}
is_header && is_within && !/^\/\/   / { end_snippet() }

END {
    if (snippets == 0) {
        print "generate.awk: no snippet was found" > "/dev/stderr"
        exit 1
    }
}
