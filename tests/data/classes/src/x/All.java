package x;
import java.util.*;
import org.apache.flink.api.java.tuple.*;
/** A field of every kind that Flink's type extraction tells apart; expected.json is what Flink makes of them. */
public class All {
    public int i;
    public Integer boxed;
    public String s;
    public java.time.Instant at;
    public java.time.LocalDate day;
    public UUID id;
    public List<String> names;
    public Map<String,Plain> map;
    public Set<Long> set;
    public List<List<String>> deep;
    public ArrayList<String> al;
    public Collection<Plain> coll;
    public List raw;
    public List<? extends Plain> wild;
    public Map<String, long[]> arrs;
    public Optional<String> opt;
    public String[] sa;
    public long[] la;
    public Integer[] ia;
    public Plain[] pa;
    public int[][] ii;
    public String[][] ss;
    public List<String>[] ls;
    public byte[] bytes;
    public Tuple2<String, Plain> t2;
    public Tuple3<Integer, List<String>, Box<Long>> t3;
    public Color color;
    public Shape shape;
    public Box<String> bs;
    public Box rawBox;
    public Box<List<String>> bl;
    public Box<?> bw;
    public Pair<String,Long> pair;
    public Sub sub;
    public Generic<Plain> gen;
    public Bean bean;
    public HalfBean half;
    public Rec rec;
    public PrivRec pr;
    public NoCtor noCtor;
    public PrivCtor privCtor;
    public Empty empty;
    public Iface iface;
    public Abs abs;
    public Dup dup;
    public Hidden.Nested nested;
    public Node node;
    public Custom custom;
    public Ser ser;
    public Object o;
    public Class<?> c;
    public java.util.concurrent.TimeUnit tu;
    public MyTuple myt;
    public FatTuple fat;
    public org.apache.flink.types.Either<String, Plain> either;
    public Number num;
    public java.math.BigDecimal bd;
    public Date d;
    public java.sql.Timestamp ts;
    public org.apache.flink.types.IntValue iv;
    public char ch;
    public Character Ch;
    public boolean flag;
    public Exc exc;
    public ListSub listSub;
    public Inner inner;
    public Sub2 sub2;
    public Map<Color, Integer> cm;
    public Box<Plain[]> bpa;
    public Iterable<String> iter;
    public Queue<String> q;
    public SortedMap<String,Long> sm;
    public Fluent fluent;
    public Scoped scoped;
    public A a;
    public IsBean isBean;
    public List<Tuple2> lt;
    public float f;
    public Void v;
    public BoxOfBox<String> bob;
    public Tuple2 rawT;
    public transient int skipped; public static int st;
    public All() {}
    public static class Plain { public long n; public Plain() {} }
    public static class Box<T> { public T content; public List<T> many; public T[] arr; public Box() {} }
    public static class BoxOfBox<U> { public Box<U> box; public Tuple2<U,Long> t; public BoxOfBox() {} }
    public static class Pair<A,B> { public A left; public B right; public Pair() {} }
    public static class Generic<T> { private T val; public T getVal(){return val;} public void setVal(T v){val=v;} public Generic() {} }
    public static class Base { public int base; public Base() {} }
    public static class Sub extends Base { public String own; public Sub() {} }
    public static class Sub2 extends Box<Long> { public String own; public Sub2() {} }
    public enum Color { RED, GREEN }
    public enum Shape { A { int f(){return 1;} }, B { int f(){return 2;} }; abstract int f(); }
    public static class Bean { private int some_thing; private boolean ok; private List<String> l; public int getSomeThing(){return some_thing;} public void setSomeThing(int x){some_thing=x;} public boolean isOk(){return ok;} public Bean setOk(Boolean b){ok=b;return this;} public List<String> getL(){return l;} public void setL(List<String> x){l=x;} public Bean(){} }
    public static class HalfBean { private int a; public int getA(){return a;} public HalfBean(){} }
    public static class Fluent { private int a; public int a(){return a;} public Object setA(int x){return this;} public Fluent(){} }
    public static class IsBean { private boolean isFine; public boolean isFine(){return isFine;} public void setFine(boolean b){isFine=b;} public IsBean(){} }
    public record Rec(int a, String b, List<Integer> c) {}
    record PrivRec(int a) {}
    public static class NoCtor { public int a; public NoCtor(int a){} }
    public static class PrivCtor { public int a; private PrivCtor(){} }
    public static class Empty { public Empty(){} }
    public interface Iface { int x(); }
    public static abstract class Abs { public int a; public Abs(int x){} }
    public static class Dup extends Base { public int base; public Dup(){} }
    public static class Hidden { protected static class Nested { public int a; public Nested(){} } }
    public static class Node { public int v; public Node next; public Node[] kids; public Node(){} }
    public static class Custom { public int a; public Custom(){} private void writeObject(java.io.ObjectOutputStream o){} }
    public static class Ser implements java.io.Serializable { private static final long serialVersionUID=1; public int a; public Ser(){} }
    public static class MyTuple extends Tuple2<String, Long> { public MyTuple(){} }
    public static class FatTuple extends Tuple2<String, Long> { public int more; public FatTuple(){} }
    public static class Exc extends RuntimeException { public int a; public Exc(){} }
    public static class ListSub extends ArrayList<String> { public int a; public ListSub(){} }
    public class Inner { public int a; public Inner(){} }
    protected static class Scoped { public int a; public Scoped(){} }
    public static class A { public B b; public A(){} }
    public static class B extends A { public int z; public B(){} }
}
