#!/usr/bin/env python3
"""lines.py OUT REQUESTS [BELOW]: misses of a request by source line of a callgrind output (--cache-sim=yes)"""
import sys,re,collections
out,req=sys.argv[1],float(sys.argv[2]); least=float(sys.argv[3]) if len(sys.argv)>3 else 0.15
names={}; events=[]; cur=None; skip=False; fn=fl=''
acc=collections.defaultdict(lambda:[0]*9)
line=0
def name(kind,text):
    m=re.match(r'\((\d+)\)(?: (.*))?',text)
    if not m: return text
    k=(kind,m[1])
    if m[2]: names[k]=m[2]
    return names.get(k,'?')
for l in open(out):
    l=l.rstrip('\n')
    if l.startswith('events:'): events=l.split()[1:]; continue
    m=re.match(r'(fl|fi|fe|fn|ob|cfn|cfi|cfl|cob|calls)=(.*)',l)
    if m:
        k,v=m.groups()
        if k in('fl','fi','fe'): fl=name('f',v)
        elif k=='fn': fn=name('n',v)
        elif k in('cfi','cfl'): name('f',v)
        elif k=='cfn': name('n',v)
        elif k in('ob','cob'): name('o',v)
        elif k=='calls': skip=True
        continue
    if not l or l[0] not in '+-*0123456789': continue
    p=l.split()
    if p[0]=='*': pass
    elif p[0][0] in '+-': line+=int(p[0])
    else: line=int(p[0])
    if skip: skip=False; continue
    a=acc[(fn,fl,line)]
    for i,v in enumerate(p[1:]): a[i]+=int(v)
i=[events.index(e) for e in('Ir','D1mr','D1mw','DLmr','DLmw')]
tot=[sum(a[j] for a in acc.values())/req for j in i]
print('%8.0f Ir %6.2f D1mr %6.2f D1mw %6.2f DLmr %6.2f DLmw  of a request'%tuple(tot))
rows=sorted(acc.items(),key=lambda x:-(x[1][i[1]]+x[1][i[2]]))
for (fn,fl,ln),a in rows:
    v=[a[j]/req for j in i[1:]]
    if v[0]+v[1]<least: break
    fl=re.sub(r'^.*/(crates|src|library)/',r'\1/',fl); fn=re.sub(r'<impl |\{closure\}|::\{\{closure\}\}','',fn)[-50:]
    print('%6.2f %6.2f %6.2f %6.2f  %s:%d  [%s]'%(*v,fl[-60:],ln,fn))
