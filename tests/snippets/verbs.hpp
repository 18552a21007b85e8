// What stands around the snippets about verbs.
#pragma once

#include "millrace/verbs/device.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/memory_window.hpp"
#include "millrace/verbs/queue_pair.hpp"
#include "millrace/verbs/thread_domain.hpp"

using namespace millrace;
using verbs::Access;
using verbs::MemoryWindow;
using verbs::ThreadDomain;

extern verbs::Context context;
extern verbs::ProtectionDomain domain;
extern verbs::ProtectionDomain shared_domain;
extern verbs::QueuePair queue_pair;
extern verbs::MemoryRegion region;
extern verbs::QueuePairOptions options;
void tell_the_peer(const verbs::RemoteAddress& address);
