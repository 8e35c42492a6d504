//! Slots whose message has arrived and has not been handed out, oldest first.

/// Each slot at most once: a message that comes for a slot which still waits has overwritten the older one, and
/// takes its place at the end.
#[derive(Debug)]
pub(crate) struct PendingSlots {
    /// A circle through the slots that wait; its last node is the head.
    nodes: Box<[Node]>,
    count: usize,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    prev: u32,
    next: u32,
    waits: bool,
    /// The receive that the slot's message consumed.
    receive: u32,
}

impl PendingSlots {
    pub(crate) fn new(num_pages: u32) -> Self {
        let nodes = (0..=num_pages).map(|n| Node { prev: n, next: n, waits: false, receive: 0 }).collect();
        Self { nodes, count: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends `slot`, whose message consumed `receive`. If it waited already: the receive of the message that
    /// was overwritten.
    pub(crate) fn push(&mut self, slot: u32, receive: u32) -> Option<u32> {
        let overwritten = self.remove(slot);
        let (head, tail) = (self.head(), self.node(self.head()).prev);
        *self.node_mut(slot) = Node { prev: tail, next: head, waits: true, receive };
        self.node_mut(tail).next = slot;
        self.node_mut(head).prev = slot;
        self.count += 1;
        overwritten
    }

    /// Takes `slot` out if it waits; gives the receive that its message consumed.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<u32> {
        self.node(slot).waits.then(|| self.unlink(slot))
    }

    /// Whether one may go.
    pub(crate) fn any(&self, may_go: impl Fn(u32) -> bool) -> bool {
        self.oldest(may_go).is_some()
    }

    /// Takes the oldest slot that may go, and the receive that its message consumed.
    pub(crate) fn take(&mut self, may_go: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        self.oldest(may_go).map(|slot| (slot, self.unlink(slot)))
    }

    fn oldest(&self, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        let head = self.head();
        let mut slot = self.node(head).next;
        while slot != head && !may_go(slot) {
            slot = self.node(slot).next;
        }
        (slot != head).then_some(slot)
    }

    fn unlink(&mut self, slot: u32) -> u32 {
        let Node { prev, next, receive, .. } = *self.node(slot);
        self.node_mut(prev).next = next;
        self.node_mut(next).prev = prev;
        self.node_mut(slot).waits = false;
        self.count -= 1;
        receive
    }

    #[allow(clippy::cast_possible_truncation)] // made from a u32
    fn head(&self) -> u32 {
        (self.nodes.len() - 1) as u32
    }

    fn node(&self, n: u32) -> &Node {
        &self.nodes[n as usize]
    }

    fn node_mut(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pending: &mut PendingSlots) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| pending.take(|_| true)).collect()
    }

    #[test]
    fn oldest_first() {
        let mut pending = PendingSlots::new(4);
        assert!(pending.is_empty());
        for slot in [2, 0, 3] {
            assert_eq!(pending.push(slot, slot + 10), None);
        }
        assert_eq!(all(&mut pending), [(2, 12), (0, 10), (3, 13)]);
        assert!(pending.is_empty());
    }

    #[test]
    fn what_may_not_go_holds_up_nothing() {
        let mut pending = PendingSlots::new(4);
        assert_eq!([1, 2, 3].map(|slot| pending.push(slot, slot)), [None; 3]);
        assert_eq!(pending.take(|slot| slot != 1), Some((2, 2)));
        assert_eq!(pending.take(|slot| slot == 0), None);
        assert!(pending.any(|slot| slot == 3) && !pending.any(|slot| slot == 2));
        assert_eq!(all(&mut pending), [(1, 1), (3, 3)]);
    }

    #[test]
    fn an_overwritten_slot_waits_once_with_its_newer_message() {
        let mut pending = PendingSlots::new(4);
        pending.push(0, 5);
        pending.push(1, 6);
        assert_eq!(pending.push(0, 7), Some(5));
        assert_eq!(all(&mut pending), [(1, 6), (0, 7)]);
        assert_eq!(pending.push(0, 8), None, "it waits no longer");
        assert_eq!((pending.remove(0), pending.remove(0)), (Some(8), None));
        assert!(pending.is_empty());
    }
}
