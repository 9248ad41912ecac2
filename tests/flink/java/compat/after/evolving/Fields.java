package evolving;

import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.types.Either;

/** Classes with fields after. */
@SuppressWarnings("rawtypes")
public final class Fields {
    private Fields() {}

    public static class Same {
        public long a;
        public String b;
    }

    public static class Added {
        public long a;
        public String b;
    }

    public static class AddedPrimitive {
        public long a;
        public int b;
    }

    public static class AddedSeveral {
        public long a;
        public String b;
        public double c;
        public Instant d;
    }

    public static class AddedBefore {
        public long a;
        public long b;
    }

    public static class Removed {
        public long a;
    }

    public static class RemovedSeveral {
        public long a;
    }

    public static class AddedAndRemoved {
        public long a;
        public double c;
    }

    public static class AllReplaced {
        public String z;
    }

    public static class Reordered {
        public double c;
        public String b;
        public long a;
    }

    public static class RenamedField {
        public String customerId;
        public long a;
    }

    public static class TypeChanged {
        public double a;
    }

    public static class TypeChangedAndAdded {
        public double a;
        public long b;
    }

    public static class IntToLong {
        public long a;
    }

    public static class FloatToDouble {
        public double a;
    }

    public static class Boxed {
        public Long a;
    }

    public static class Unboxed {
        public int a;
    }

    public static class PrimitiveToString {
        public String a;
    }

    public static class StringToEnum {
        public Enums.Same a;
    }

    public static class EnumToString {
        public String a;
    }

    public static class DateToInstant {
        public Instant a;
    }

    public static class InstantToLong {
        public long a;
    }

    public static class DateToSqlDate {
        public java.sql.Date a;
    }

    public static class BigIntegerToDecimal {
        public java.math.BigDecimal a;
    }

    public static class DoubleToDecimal {
        public java.math.BigDecimal a;
    }

    public static class LocalDateKept {
        public java.time.LocalDate a;
    }

    public static class LocalDateToTime {
        public java.time.LocalDateTime a;
    }

    public static class NestedSame {
        public Same in;
    }

    public static class NestedAdded {
        public Added in;
    }

    public static class NestedRemoved {
        public Removed in;
        public long z;
    }

    public static class NestedTypeChanged {
        public TypeChanged in;
    }

    public static class NestedTwice {
        public NestedAdded in;
    }

    public static class NestedTwiceChanged {
        public NestedTypeChanged in;
    }

    public static class NestedOtherClass {
        public Added in;
    }

    public static class NestedBecameString {
        public String in;
    }

    public static class NestedInTuple {
        public Tuple2<String, Added> in;
    }

    public static class NestedInTupleChanged {
        public Tuple2<String, TypeChanged> in;
    }

    public static class NestedInArray {
        public Added[] in;
    }

    public static class NestedInArrayChanged {
        public TypeChanged[] in;
    }

    public static class NestedInEither {
        public Either<Long, Added> in;
    }

    public static class NestedInList {
        public List<Added> in;
    }

    public static class NestedInListChanged {
        public List<TypeChanged> in;
    }

    public static class NestedInMap {
        public Map<String, Added> in;
    }

    public static class NestedInMapChanged {
        public Map<String, TypeChanged> in;
    }

    public static class NestedAddedAndEnum {
        public Added in;
        public Enums.AddedAtEnd e;
    }

    public static class NestedNewNested {
        public long a;
        public Same in;
    }

    public static class TupleArity {
        public Tuple3<String, Long, Long> a;
    }

    public static class TupleType {
        public Tuple2<String, Double> a;
    }

    public static class TupleSwapped {
        public Tuple2<Long, String> a;
    }

    public static class EitherType {
        public Either<String, Double> a;
    }

    public static class ListKept {
        public List<String> a;
    }

    public static class ListElement {
        public List<Long> a;
    }

    public static class ListToSet {
        public Set<String> a;
    }

    public static class ListToArrayList {
        public ArrayList<String> a;
    }

    public static class ListToCollection {
        public Collection<String> a;
    }

    public static class ListToArray {
        public String[] a;
    }

    public static class ListToString {
        public String a;
    }

    public static class RawListToList {
        public List<String> a;
    }

    public static class ListAdded {
        public long a;
        public List<String> b;
    }

    public static class ListRemoved {
        public long a;
    }

    public static class SetKept {
        public Set<String> a;
    }

    public static class SetElement {
        public Set<Long> a;
    }

    public static class SetToHashSet {
        public HashSet<String> a;
    }

    public static class MapKept {
        public Map<String, Long> a;
    }

    public static class MapKey {
        public Map<Long, Long> a;
    }

    public static class MapValue {
        public Map<String, String> a;
    }

    public static class MapToHashMap {
        public HashMap<String, Long> a;
    }

    public static class MapOfLists {
        public Map<String, List<Long>> a;
    }

    public static class MapOfListsChanged {
        public Map<String, List<String>> a;
    }

    public static class ListOfEnums {
        public List<Enums.AddedAtEnd> a;
    }

    public static class ArrayKept {
        public long[] a;
        public String[] b;
        public Integer[] c;
    }

    public static class ArrayElement {
        public double[] a;
    }

    public static class ArrayBoxed {
        public Long[] a;
    }

    public static class ArrayObjectElement {
        public Long[] a;
    }

    public static class ArrayToString {
        public String a;
    }

    public static class ArrayOfArrays {
        public long[][] a;
    }

    public static class ArrayOfArraysChanged {
        public int[][] a;
    }

    public static class EnumSame {
        public Enums.Same a;
    }

    public static class EnumAdded {
        public Enums.AddedAtEnd a;
    }

    public static class EnumAddedInMiddle {
        public Enums.AddedInMiddle a;
    }

    public static class EnumReordered {
        public Enums.Reordered a;
    }

    public static class EnumRemoved {
        public Enums.Removed a;
    }

    public static class EnumOther {
        public Enums.AddedAtEnd a;
    }

    public static class EnumAddedAndField {
        public Enums.AddedAtEnd a;
        public long b;
    }

    public static class EnumRemovedWithField {
        public long b;
    }

    public static class EnumArray {
        public Enums.AddedAtEnd[] a;
    }

    public static class Generic {
        public Object a;
    }

    public static class GenericType {
        public Opened a;
    }

    public static class GenericToOther {
        public java.util.Locale a;
    }

    public static class GenericToPojo {
        public Same a;
    }

    public static class PojoToGeneric {
        public Object a;
    }

    public static class UuidToString {
        public String a;
    }

    public static class TransientNow {
        public long a;
        public transient String b;
    }

    public static class NoLongerTransient {
        public long a;
        public String b;
    }

    public static class Recursive {
        public long a;
        public Recursive next;
    }

    public static class ValueField {
        public org.apache.flink.types.LongValue a;
    }

    public static class VoidAdded {
        public long a;
        public Void b;
    }

    public static class BecamePojo {
        public long a;
    }

    public static class NoLongerPojo {
        private final long a;

        public NoLongerPojo(long a) {
            this.a = a;
        }
    }

    public static class Opened {
        public long a;
    }

    public static class Getters {
        public long a;
    }
}
