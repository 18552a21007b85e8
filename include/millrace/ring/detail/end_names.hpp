// The parts of an end (end/) that ring/ is built of, by the names that its files say.
#pragma once

#include "millrace/end/completion_sleeper.hpp"
#include "millrace/end/counter.hpp"
#include "millrace/end/end.hpp"
#include "millrace/end/far_fence.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/end/wake_up.hpp"

namespace millrace::ring {

using end::Bell;
using end::cache_line;
using end::Completions;
using end::CompletionSleeper;
using end::CounterLine;
using end::CounterPull;
using end::CounterPush;
using end::End;
using end::PeerWord;
using end::SendWindow;
using end::Signal;
using end::Sleeper;
using end::Slot;
using end::WakeUpPage;

}  // namespace millrace::ring
