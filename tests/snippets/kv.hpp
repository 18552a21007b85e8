// What stands around the snippets about the store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/kv/client.hpp"
#include "millrace/kv/cluster.hpp"
#include "millrace/kv/coroutine.hpp"
#include "millrace/kv/ketama.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/kv/store.hpp"
#include "words.hpp"

extern std::span<const std::byte> key;
extern std::vector<std::byte> value;
extern std::vector<std::span<const std::byte>> keys;
void use(std::span<const std::byte> value);
