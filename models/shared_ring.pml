/* One ring of a consumer into which several producers lay items: include/millrace/flow/
 * shared_ring.hpp, src/flow/shared_ring.cpp and shared_producer.cpp.
 *
 *   Producer  says which places it tries for, takes them by a compare-and-swap of the tail, lays an
 *             item in each, then its mark; goes on where the ring has moved to
 *   Device    executes WRITEs of items any time later (post=1)
 *   Death     kills a producer at any moment
 *   Consumer  takes items; passes over an empty place that has an owner, where nobody who lives says
 *             that it tried for it; gives up who leaves a place empty, at any moment, and moves
 *
 * Modelled: a claim is of one place or of two (batch=2), which wrap. By stores they are filled in
 * their order, by post in any: where the device keeps no order, or the claim wraps. Of each producer
 * a prefix of what it sent is taken (in_order), whatever is left of a claim of its last. Nothing
 * more is taken of who was given up; where claims are of one place, it may be, and all holds still.
 * A producer that was given up goes on with what it was about, and lays its item late. A
 * WRITE looks whether its queue pair is there some time before its bytes arrive. By post the device's
 * compare-and-swap reads and writes in two steps, and the consumer's store of "moved" may fall
 * between. Each attempt is looked at in a step of its own.
 * Left out: owners' secrets, tails that lie, sleeping (wake_up.pml), who comes later.
 *
 * Settings: items (of each producer), deaths, given_up (how many at most), post, batch.
 */
#include "common.pml"

#define PRODUCERS 2
#define SLOTS 2
#define MOVED 99
#define APART 20 /* between the first positions of one memory and the next, to which the ring moves */

local byte items;
local byte most_given_up;
local byte most_deaths;
local bit by_post;
local byte batch;
hidden byte all_are_taken, item_is_its, in_order;

byte tail[3];                     /* of each memory */
byte consumed[3];
byte item_of[6], number_of[6];    /* what lies in a place; two places of each memory */
byte mark_of[6], marked_by[6];    /* position + 1; 0: none */
byte attempt[PRODUCERS];          /* position + 1; 0: none */
byte attempted[PRODUCERS];        /* how many places, from there on */
bit alive[PRODUCERS], given_up[PRODUCERS], connected[PRODUCERS], copies[PRODUCERS];
bit swaps[PRODUCERS];             /* its compare-and-swap is between its two steps */
bit over[PRODUCERS];              /* it has ended */
bit forgotten[PRODUCERS];         /* nothing more is taken of it */
bit at_device;                    /* somebody's is */
byte told[PRODUCERS];             /* the memory that it was told of last, in its own memory */
chan wire[PRODUCERS] = [2] of { byte, byte }; /* position, number */
byte next[PRODUCERS];

#define place_of(position) (position / APART * SLOTS + position % SLOTS)
#define is_marked(position) (mark_of[place_of(position)] == position + 1)
#define shows_item(position) (is_marked(position) && !forgotten[marked_by[place_of(position)]])
#define tries_for(who, position) \
    (attempt[who] <= position + 1 && position + 1 < attempt[who] + attempted[who])
#define lives(who) (alive[who] && !given_up[who])

/* A step of a producer, who may be dead by then. */
#define step(what) if :: !alive[me] -> goto gone :: atomic { alive[me] -> what } fi

/* What was posted before is done first. */
#define all_is_done (!by_post || !alive[me] || (len(wire[me]) == 0 && !copies[me]))

inline follow() {
    all_is_done;
    step(attempt[me] = 0; attempted[me] = 0);
    if
    :: !alive[me] || given_up[me] -> goto gone
    :: alive[me] && !given_up[me] && told[me] > memory ->
        memory = told[me];
        position = memory * APART
    fi
}

/* One item of the claim, by stores. */
inline store_item() {
    step(item_of[place_of(position)] = me);
    step(number_of[place_of(position)] = number);
    step(marked_by[place_of(position)] = me; mark_of[place_of(position)] = position + 1)
}

inline post_item(position_of_it, number_of_it) {
    if
    :: !alive[me] -> goto gone
    :: alive[me] -> wire[me]!position_of_it, number_of_it
    fi
}

proctype Producer(byte me) {
    byte number, position, found, memory, count;
    do
    :: !alive[me] -> break
    :: alive[me] && number == items -> break
    :: alive[me] && number < items && given_up[me] -> break
    :: alive[me] && number < items && told[me] > memory &&
       position >= consumed[memory] + SLOTS -> follow()
    :: alive[me] && number < items &&
       (position < consumed[memory] + SLOTS || wrong(no_room_needed)) ->
        all_is_done;
        if
        :: count = 1
        :: batch == 2 && number + 2 <= items && position + 2 <= consumed[memory] + SLOTS ->
            count = 2
        fi;
        if
        :: wrong(attempt_late)
        :: else -> step(attempt[me] = position + 1; attempted[me] = count)
        fi;
        if
        :: by_post ->
            if
            :: !alive[me] -> goto gone
            :: alive[me] && !connected[me] -> goto gone
            :: atomic {
                alive[me] && connected[me] && !at_device ->
                at_device = 1;
                swaps[me] = 1;
                found = tail[memory]
               }
            fi;
            atomic {
                if
                :: found == position -> tail[memory] = position + count
                :: else
                fi;
                at_device = 0;
                swaps[me] = 0
            }
        :: !by_post && !alive[me] -> goto gone
        :: atomic {
            !by_post && alive[me] ->
            found = tail[memory];
            if
            :: found == position -> tail[memory] = position + count
            :: else
            fi
           }
        fi;
        if
        :: found == MOVED -> follow()
        :: found != MOVED && found != position -> position = found
        :: found == position ->
            if
            :: wrong(attempt_withdrawn) -> step(attempt[me] = 0; attempted[me] = 0)
            :: wrong(attempt_late) -> step(attempt[me] = position + 1; attempted[me] = count)
            :: else
            fi;
            if
            :: by_post && count == 1 -> post_item(position, number)
            :: by_post && count == 2 ->
                post_item(position, number);
                post_item(position + 1, number + 1)
            :: by_post && count == 2 ->
                post_item(position + 1, number + 1);
                post_item(position, number)
            :: !by_post && !wrong(mark_first) ->
                store_item();
                if
                :: count == 1
                :: count == 2 ->
                    atomic {
                        number++;
                        position++;
                        count = 1
                    };
                    store_item()
                fi
            :: !by_post && wrong(mark_first) ->
                atomic {
                    marked_by[place_of(position)] = me;
                    mark_of[place_of(position)] = position + 1
                };
                item_of[place_of(position)] = me;
                number_of[place_of(position)] = number
            fi;
            number = number + count;
            position = position + count;
            count = 0
        fi
    od;
gone:
    /* It says goodbye when all of it has arrived. */
    !by_post || !lives(me) || (len(wire[me]) == 0 && !copies[me]);
    over[me] = 1
}

proctype Device(byte whose) {
    byte position, number;
end:
    do
    :: atomic {
        wire[whose]?position, number ->
        if
        :: connected[whose] -> copies[whose] = 1
        :: else
        fi
       };
       if
       :: copies[whose] ->
            item_of[place_of(position)] = whose;
            number_of[place_of(position)] = number;
            atomic {
                marked_by[place_of(position)] = whose;
                mark_of[place_of(position)] = position + 1;
                copies[whose] = 0
            }
       :: else
       fi;
       position = 0;
       number = 0
    od
}

proctype Death() {
    byte killed, whom;
    do
    :: killed < most_deaths ->
        killed++;
        if
        :: whom = 0
        :: whom = 1
        fi;
        alive[whom] = 0
    :: break
    od
}

/* Whoever lives and may own the place in front is waited for, or given up. */
inline look_at_attempt() {
    if
    :: tries_for(who, front) && !alive[who] && !given_up[who] ->
        is_gone[who] = 1;
        if
        :: wrong(not_fenced)
        :: else -> connected[who] = 0; !copies[who] && !swaps[who]
        fi
    :: tries_for(who, front) && lives(who) && !wrong(lives_ignored) ->
        if
        :: waits = 1
        :: times < most_given_up ->
            times++;
            given_up[who] = 1;
            connected[who] = 0;
            !copies[who] && !swaps[who];
            if
            :: batch == 1 || wrong(given_up_heard)
            :: else -> forgotten[who] = 1
            fi;
            if
            :: wrong(stays_there)
            :: moving && wrong(follower_forgotten)
            :: else -> must_move = 1
            fi
        fi
    :: else
    fi
}

/* Of who is given up while the ring moves, it moves away once more. */
inline move() {
    limit = consumed[memory] + SLOTS;
    if
    :: lives(0) -> told[0] = memory + 1
    :: else
    fi;
    if
    :: lives(1) -> told[1] = memory + 1
    :: else
    fi;
    tail[memory] = MOVED;
    moving = 1;
    must_move = 0
}

/* The place in front is passed over: of whoever is gone and tried for it, nothing follows. */
inline forget_rest_of_claim() {
    d_step {
        if
        :: is_gone[0] && !wrong(rest_kept) -> forgotten[0] = 1
        :: else
        fi;
        if
        :: is_gone[1] && !wrong(rest_kept) -> forgotten[1] = 1
        :: else
        fi;
        is_gone[0] = 0;
        is_gone[1] = 0
    }
}

#define is_claimed (moving || tail[memory] > front)

proctype Consumer() {
    byte front, memory, who, seen, limit, times;
    bit waits, moving, must_move;
    bit is_gone[PRODUCERS];
again:
    do
    :: moving && (front == limit || wrong(left_early)) ->
        memory++;
        front = memory * APART;
        moving = 0
    :: must_move && !moving -> move()
    :: !(moving && front == limit) && shows_item(front) ->
        if
        :: wrong(credit_first) && !moving -> consumed[memory] = front + 1
        :: else
        fi;
        who = marked_by[place_of(front)];
        item_is_its = item_of[place_of(front)] == who;
        assert(item_is_its);
        in_order = number_of[place_of(front)] == next[who];
        assert(in_order);
        next[who]++;
        front++;
        if
        :: moving
        :: !moving -> consumed[memory] = front
        fi
    :: moving && tail[memory] != MOVED && !wrong(moved_once) -> tail[memory] = MOVED
    :: !(moving && front == limit) && !(must_move && !moving) && !shows_item(front) && is_claimed ->
        seen = (moving -> limit : (wrong(attempts_first) -> front + 1 : tail[memory]));
        waits = 0;
        who = 0;
        is_gone[0] = 0;
        is_gone[1] = 0;
        do
        :: who == PRODUCERS -> break
        :: who < PRODUCERS -> look_at_attempt(); who++
        od;
        if
        :: waits || (must_move && !moving) ||
           (moving && tail[memory] != MOVED && !wrong(moved_once)) -> goto again
        :: else
        fi;
        if
        :: shows_item(front) && !wrong(no_second_look)
        :: !shows_item(front) || wrong(no_second_look) ->
            forget_rest_of_claim();
            front++;
            if
            :: moving
            :: !moving -> consumed[memory] = front
            fi
        fi
    :: wrong(attempts_first) && !moving && !shows_item(front) && tail[memory] == front ->
        /* It looks at the attempts, and then whether the place has an owner. */
        waits = 0;
        who = 0;
        do
        :: who == PRODUCERS -> break
        :: who < PRODUCERS -> waits = waits || tries_for(who, front); who++
        od;
        if
        :: !waits && tail[memory] > front && !shows_item(front) ->
            front++;
            consumed[memory] = front
        :: else
        fi;
        if
        :: over[0] && over[1] && !is_claimed -> break
        :: else
        fi
    :: over[0] && over[1] && !shows_item(front) && !is_claimed -> break
    od;
    /* Who lives and was not given up has lost nothing. */
    who = 0;
    do
    :: who == PRODUCERS -> break
    :: who < PRODUCERS ->
        all_are_taken = !lives(who) || next[who] == items;
        assert(all_are_taken);
        who++
    od
}

init {
    start();
    c_code {
        now.items = setting("MODEL_items", 2);
        now.most_deaths = setting("MODEL_deaths", 1);
        now.most_given_up = setting("MODEL_given_up", 1);
        now.by_post = setting("MODEL_post", 0);
        now.batch = setting("MODEL_batch", 1);
    }
    atomic {
        tail[1] = APART;
        tail[2] = 2 * APART;
        consumed[1] = APART;
        consumed[2] = 2 * APART;
        alive[0] = 1;
        alive[1] = 1;
        connected[0] = 1;
        connected[1] = 1;
        run Producer(0);
        run Producer(1);
        run Device(0);
        run Device(1);
        run Death();
        run Consumer()
    }
}
