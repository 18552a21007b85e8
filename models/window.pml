/* The slots of a send queue: end/send_window.hpp.
 *
 *   Poster   posts requests, some of them signaled, and an event for a peer that sleeps now and then
 *   Device   executes them; answers of the peer come before, with or after the completions
 *
 * Modelled: slots that are freed by polled completions alone, one completion for many requests, the
 * reserve for events, answers that overtake completions.
 * Left out: what the requests do.
 *
 * Settings: slots, reserve (of them, for events), interval (requests between signaled ones).
 */
#include "common.pml"

#define REQUESTS 8

local byte slots, reserve, interval;
hidden byte slot_is_free, event_finds_a_slot;

chan queue = [REQUESTS + 2] of { byte };       /* tickets on their way; plus 100: signaled */
chan completions = [REQUESTS + 2] of { byte }; /* tickets, in the completion queue */
byte executed;
byte answered; /* the peer has answered requests up to here */
byte posted, completed, polled, signaled;

#define used (posted - completed)
#define no_slot (used >= (wrong(reserve_taken) -> slots : slots - reserve) && !wrong(slots_not_counted))

inline reap() {
    do
    :: completions?polled -> completed = (completed > polled -> completed : polled)
    :: empty(completions) -> break
    od;
    if
    :: wrong(freed_by_answers) && answered > completed -> completed = answered
    :: else
    fi
}

inline post() {
    posted++;
    slot_is_free = posted - polled <= slots;
    assert(slot_is_free);
    if
    :: posted - signaled >= interval && !wrong(never_signals) ->
        signaled = posted;
        queue!posted + 100
    :: else -> queue!posted
    fi
}

proctype Poster() {
    byte last, before_last; /* tickets of events */
    do
    :: posted == REQUESTS -> break
    :: posted < REQUESTS ->
        atomic {
            if
            :: no_slot -> reap()
            :: else
            fi
        };
        if
        :: no_slot ->
            nempty(completions) || (wrong(freed_by_answers) && answered > completed)
        :: else -> atomic { post() }
        fi
    :: atomic { /* the peer sleeps; with as many events incomplete as the reserve has slots at most */
        posted < REQUESTS && reserve > 0 && completed >= (reserve == 1 -> last : before_last) ->
        if
        :: used >= slots -> reap()
        :: else
        fi;
        event_finds_a_slot = used < slots;
        assert(event_finds_a_slot);
        post();
        before_last = last;
        last = posted
       }
    od
}

proctype Device() {
    byte ticket;
end:
    do
    :: atomic { queue?ticket -> executed = ticket % 100 };
       if
       :: ticket >= 100 -> atomic { completions!ticket - 100; ticket = 0 }
       :: else -> ticket = 0
       fi
    od
}

/* The peer answers what was executed, whenever it likes. */
proctype Peer() {
end:
    do
    :: atomic { answered < executed -> answered = executed }
    od
}

init {
    atomic {
        start();
        c_code {
            now.slots = setting("MODEL_slots", 4);
            now.reserve = setting("MODEL_reserve", 1);
            now.interval = setting("MODEL_interval", 1);
        };
        run Poster(); run Device(); run Peer()
    }
}
