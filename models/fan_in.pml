/* A consumer of many producers that sleeps in one hub: include/millrace/flow/sources.hpp, of which
 * FanIn, KeyedFanIn and Merge are made.
 *
 *   Producer   joins, lays items, rings for a source that has announced its sleep, leaves
 *   Owner      takes items of the sources that are awake; asks each of them for a wake-up, and
 *              sleeps once none is awake
 *
 * Modelled: producers that join late, with items in their rings before they are let in; sources
 * that fall asleep one by one while others go on; a wake-up that comes for one of them; the end of
 * each, which is found like an item.
 * Left out: how one source announces and is rung for, which wake_up.pml proves: here an
 * announcement, and the look after it, are two steps of two words. The look once in a millisecond
 * at the sources that are awake, which would hide one that was forgotten.
 *
 * Settings: items (of each of two producers).
 */
#include "common.pml"

#define PRODUCERS 2

local byte items;

byte laid[PRODUCERS];
bool has_left[PRODUCERS];
bool is_outside[PRODUCERS]; /* it has connected, and was not let in */
bool announced[PRODUCERS];  /* its source asks to be rung for */
bool is_readable[PRODUCERS]; /* the source's descriptor, in the hub's epoll */
bool knocks;                 /* the listener's */

inline ring(which) {
    if
    :: announced[which] -> announced[which] = false; is_readable[which] = true
    :: else
    fi
}

proctype Producer(byte me) {
    byte sent;
    /* Its ring is there before it is let in. */
    if
    :: laid[me]++; sent++
    :: skip
    fi;
    is_outside[me] = true;
    knocks = true;
    do
    :: sent == items -> break
    :: sent != items -> laid[me]++; sent++; ring(me)
    od;
    has_left[me] = true;
    ring(me)
}

proctype Owner() {
    byte taken[PRODUCERS];
    bool is_here[PRODUCERS], is_gone[PRODUCERS], is_active[PRODUCERS];
    byte i;
    do
    :: is_gone[0] && is_gone[1] -> break
    :: else ->
        /* accept() */
        if
        :: knocks ->
            knocks = false;
            for (i : 0 .. PRODUCERS - 1) {
                if
                :: is_outside[i] ->
                    is_outside[i] = false;
                    is_here[i] = true;
                    is_active[i] = !wrong(joins_asleep)
                :: else
                fi
            }
        :: else
        fi;
        /* a round */
        for (i : 0 .. PRODUCERS - 1) {
            if
            :: is_active[i] && laid[i] > taken[i] -> taken[i]++
            :: else ->
                if
                :: is_active[i] && has_left[i] ->
                    /* what was laid before the end is taken before it */
                    if
                    :: laid[i] == taken[i] || wrong(end_first) ->
                        assert(laid[i] == taken[i]); /* nothing_is_lost */
                        is_gone[i] = true; is_here[i] = false; is_active[i] = false
                    :: else
                    fi
                :: else
                fi
            fi
        };
        /* fall_asleep(): peek, which announces and looks once more */
        for (i : 0 .. PRODUCERS - 1) {
            if
            :: is_active[i] ->
                if
                :: wrong(not_announced)
                :: else -> announced[i] = true
                fi;
                if
                :: !wrong(no_last_look) && (laid[i] > taken[i] || has_left[i]) ->
                    announced[i] = false /* it stays awake */
                :: else -> is_active[i] = false
                fi
            :: else
            fi
        };
        /* may_sleep() */
        if
        :: (is_active[0] || is_active[1]) && !wrong(sleeps_awake)
        :: else ->
            if
            :: is_gone[0] && is_gone[1]
            :: else -> knocks || is_readable[0] || is_readable[1]
            fi
        fi;
        for (i : 0 .. PRODUCERS - 1) {
            if
            :: is_readable[i] ->
                is_readable[i] = false;
                if
                :: wrong(woken_not_looked_at) && i == 1
                :: else -> is_active[i] = is_here[i]
                fi
            :: else
            fi
        }
    od
}

init {
    start();
    c_code { now.items = setting("MODEL_items", 2); }
    atomic {
        run Producer(0);
        run Producer(1);
        run Owner()
    }
}
