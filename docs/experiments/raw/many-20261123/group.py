#!/usr/bin/env python3
"""group.py: sums of lines.py's listing (standard input) by what the lines belong to"""
import sys,re,collections
rules=[('received bytes',r'request/parse.rs'),
('epoll entry',r'epoll/table.rs|Epoll::|smallvec.*(epoll|Epoll)'),
('slot of the operation',r'slot.rs|option.rs:(767|729|636)  \[io::|mem/mod.rs:90\d  \[io::|Slots::insert'),
('descriptor (Fd)',r'fd.rs:\d+  \[io::|owned.rs:162|ptr/mod.rs:1717|rc.rs.*Table::of'),
('completion on its way',r'ptr/mod.rs:1917|outcomes|vec/mod.rs|Slots::finish'),
('wait and its name',r'ops.rs|rt::ops::|Waits|vec_deque.*ops|Inner::file'),
('task',r'task.rs|block_on|wake_task'),
('timer',r'timer|Timer'),
('list of waiting connections',r'recency|Waiting|thread.rs|Thread::waits'),
('facts of the connection (ConnInfo)',r'take_request|respond.rs:3[57]\d|conn.*info'),
('connection and its state',r'connection|Connection|Reader|reader.rs|Writer|Input|Socket')]
acc=collections.OrderedDict((n,[0,0,0,0]) for n,_ in rules); acc['other']=[0,0,0,0]
for l in sys.stdin:
    m=re.match(r'\s*([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)  (.*)',l)
    if not m: continue
    for n,r in rules:
        if re.search(r,m[5]): break
    else: n='other'
    for i in range(4): acc[n][i]+=float(m[i+1])
for n,v in acc.items(): print('%-36s first cache %5.2f read %5.2f written; anew %5.2f read %5.2f written'%(n,*v))
