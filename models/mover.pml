/* The data mover: src/ring/sender_mover.hpp, include/millrace/ring/detail/data_mover.hpp, and the
 * ThreadBell by which it and the calling thread sleep.
 *
 *   Caller     lays items, publishes how far, rings for the mover; where its ring is full it asks
 *              the mover to watch, announces its sleep, and sleeps; leaves, once all is settled
 *   Mover      goes through its flows under their mutex; moves what is published, tells how far that
 *              is transferred, rings for the caller; sleeps once a pass found every flow idle
 *   Device     completes what was moved, some time
 *
 * Modelled: two flows of two callers, of which either may leave while the mover is at the other
 * one; the naps that the mover takes while something is on its way, as a look at any time.
 * Left out: batches, pull, the peer; that a futex returns for no reason.
 *
 * Settings: items (of each flow), ring (items of the caller's ring).
 */
#include "common.pml"

#define FLOWS 2

local byte items, ring;

/* Of each flow. */
byte published[FLOWS], posted[FLOWS], completed[FLOWS];
byte transferred[FLOWS]; /* as the mover has told */
bool is_there[FLOWS];    /* in the mover's list */
bool is_destroyed[FLOWS];
bool caller_sleeps[FLOWS], caller_rung[FLOWS];

bool mover_sleeps, mover_rung, mutex;

/* ThreadBell::ring(), after the publication. */
inline ring_for_mover() {
    if
    :: mover_sleeps && !wrong(never_notifies) -> mover_sleeps = false; mover_rung = true
    :: else
    fi
}
inline ring_for_caller(flow) {
    if
    :: caller_sleeps[flow] && !wrong(never_tells) ->
        caller_sleeps[flow] = false; caller_rung[flow] = true
    :: else
    fi
}

#define has_room(flow) (laid - transferred[flow] < ring)

proctype Caller(byte me) {
    byte laid;
    do
    :: laid == items -> break
    :: laid != items ->
        if
        :: has_room(me) ->
            laid++;
            if
            :: wrong(rings_first) -> atomic { ring_for_mover() }; published[me] = laid
            :: else -> published[me] = laid; atomic { ring_for_mover() }
            fi
        :: else ->
            caller_sleeps[me] = true;
            if
            :: !has_room(me) || wrong(caller_looks_not) -> caller_rung[me]
            :: else
            fi;
            caller_sleeps[me] = false; caller_rung[me] = false
        fi
    od;
    /* flush */
    do
    :: transferred[me] == laid -> break
    :: else ->
        caller_sleeps[me] = true;
        if
        :: transferred[me] != laid || wrong(caller_looks_not) -> caller_rung[me]
        :: else
        fi;
        caller_sleeps[me] = false; caller_rung[me] = false
    od;
    /* remove() */
    if
    :: wrong(leaves_at_once)
    :: else -> atomic { !mutex -> mutex = true }
    fi;
    is_there[me] = false;
    if
    :: wrong(leaves_at_once)
    :: else -> mutex = false
    fi;
    is_destroyed[me] = true
}

proctype Device() {
end:
    do
    :: completed[0] < posted[0] -> completed[0]++
    :: completed[1] < posted[1] -> completed[1]++
    od
}

inline move(flow) {
    seen = published[flow];
    if
    :: seen > posted[flow] -> posted[flow] = seen; moved = true
    :: else
    fi;
    if
    :: completed[flow] != transferred[flow] ->
        assert(!is_destroyed[flow]); /* nobody_uses_what_is_gone */
        if
        :: wrong(rings_before_it_tells) ->
            atomic { ring_for_caller(flow) }; transferred[flow] = completed[flow]
        :: else -> transferred[flow] = completed[flow]; atomic { ring_for_caller(flow) }
        fi;
        moved = true
    :: else
    fi;
    if
    :: posted[flow] != transferred[flow] && !wrong(idle_while_it_travels) -> waiting = true
    :: else
    fi;
    seen = 0
}

/* A pass over all flows. */
inline pass() {
    moved = false; waiting = false;
    atomic { !mutex -> mutex = true };
    for (i : 0 .. FLOWS - 1) {
        if
        :: is_there[i] ->
            assert(!is_destroyed[i]); /* nobody_uses_what_is_gone */
            move(i)
        :: else
        fi
    };
    mutex = false
}

proctype Mover() {
    byte i, seen;
    bool moved, waiting;
    do
    :: !is_there[0] && !is_there[1] -> break
    :: else ->
        pass();
        if
        :: moved || waiting /* again, or after a nap */
        :: else ->
            mover_sleeps = true;
            if
            :: wrong(mover_looks_not)
            :: else -> pass()
            fi;
            if
            :: moved || waiting
            :: else -> mover_rung || (!is_there[0] && !is_there[1])
            fi;
            mover_sleeps = false; mover_rung = false
        fi
    od
}

init {
    start();
    c_code {
        now.items = setting("MODEL_items", 2);
        now.ring = setting("MODEL_ring", 1);
    }
    is_there[0] = true;
    is_there[1] = true;
    atomic {
        run Caller(0);
        run Caller(1);
        run Device();
        run Mover()
    }
}
